"""These tests need vLLM: they run in an environment of its own (docs/engines.md), and are not collected elsewhere."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]
