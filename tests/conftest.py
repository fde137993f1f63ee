import os

import hypothesis

hypothesis.settings.register_profile("default", deadline=None, max_examples=40)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=40, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")
