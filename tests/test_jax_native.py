"""XLA calls the compiled core for JAX arrays on the CPU; the programs are in jax_cases.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kerneltrick as kt
from kerneltrick.engines import _jax_host, _xla_call, core

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.skipif(core() is None, reason="no compiled core")

PROGRAMS = Path(__file__).parent / "jax_cases.py"


def run(*words, devices=1):
    flags = f"--xla_force_host_platform_device_count={devices}"
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(PROGRAMS), *words],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["bits", "wrong_shapes"])
def test_calls(name):
    run(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["all_bits", "all_bits_in_float64", "transformations", "other_devices"]
)
def test_calls_of_every_kind(name):
    run(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["half_precision", "torch_gradients"])
def test_calls_agree_with_pytorch(name):
    pytest.importorskip("torch")
    run(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear", "window", "learned", "delta"])
def test_derivatives_agree_with_the_chunked_engine(name):
    run("derivatives", name)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 4])
def test_sharded_arrays_are_not_gathered(devices):
    run("sharded", devices=devices)


@pytest.mark.parametrize("counts", ["1 2 2", pytest.param("", marks=pytest.mark.slow)])
def test_heads_over_devices_in_any_number(counts):
    run("sharded_heads", *counts.split(), devices=4)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 4])
def test_a_sequence_over_devices_equals_one_device(devices):
    run("context_parallel", devices=devices)


class TestVersions:
    def test_the_core_is_used(self):
        assert _xla_call.unavailable() == ""
        assert kt.show_config("dicts")["jax"] == "core"
        assert _jax_host.host((jax.numpy.ones(3),)) == "recorded"

    def test_an_interface_that_is_not_known_is_not_used(self, monkeypatch):
        monkeypatch.setattr(_xla_call, "VERSIONS", ((0, 99),))
        monkeypatch.setattr(_xla_call, "_registered", _xla_call._registered.__wrapped__)
        assert "of XLA's interface, not one of 0.99" in kt.show_config("dicts")["jax"]
        assert _jax_host.host((jax.numpy.ones(3),)) == "foreign"

    def test_an_old_jax_is_not_used(self, monkeypatch):
        monkeypatch.setattr(_xla_call, "OLDEST", (99, 0))
        monkeypatch.setattr(_xla_call, "_registered", _xla_call._registered.__wrapped__)
        assert "is older than 99.0" in kt.show_config("dicts")["jax"]
