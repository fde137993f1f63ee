"""The base class of analysis results."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from kerneltrick._text import to_json


class Result:
    """Base of the frozen dataclasses that analyses return."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, ready for JSON: NaN becomes None, infinity becomes "inf"."""
        assert dataclasses.is_dataclass(self)
        return {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    def to_json(self) -> str:
        """Return `to_dict` as JSON text."""
        return to_json(self.to_dict(), indent=2) + "\n"


def plain(value: Any) -> Any:
    """Make a value ready for JSON: NaN becomes None, infinity becomes "inf"."""
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value
