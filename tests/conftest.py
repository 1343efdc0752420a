from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
LONG = {"test_followers", "test_parallel", "test_server_faults", "test_longbench", "test_bound"}
"""Files with tests of five seconds and more."""
torch.set_num_threads(1)  # tiny models: threads would only wait for each other


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests with the embedded model come first: one process loads it, and none ends with them. Long
    tests come next, so that no process waits for the other's last one.

    Leaves out the slow tests unless they are asked for, and says why.
    """

    def place(item: pytest.Item) -> int:
        if "smollm2" in getattr(item, "fixturenames", ()):
            return 0
        return 2 - (item.path.stem in LONG)

    items.sort(key=place)
    if config.getoption("-m"):
        return
    slow = pytest.mark.skip(
        reason="slow: needs a model file beyond the embedded one; run with -m slow"
    )
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(slow)


def pytest_collection_finish() -> None:
    """The garbage collector need not look at the modules again and again: they stay."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def exact_dtype() -> None:
    """dtype `auto` is float32 on every processor, also on one that is faster in bfloat16."""
    from infinipot.model import load

    load.CPU_INFO = Path("/nowhere")


@pytest.fixture(scope="session")
def smollm2():
    """The embedded model and its tokenizer, float32 on the CPU."""
    from infinipot.model.load import embedded, load

    try:
        embedded()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    return load("smollm2", device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def smollm2_tokenizer():
    """Without the model, which takes long."""
    from infinipot.model.gguf import gguf_tokenizer
    from infinipot.model.load import embedded

    try:
        return gguf_tokenizer(embedded())
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def qwen():
    """Qwen2.5-Coder-0.5B-Instruct from a GGUF file in the folder INFINIPOT_MODELS."""
    from infinipot import load

    folder = Path(os.environ.get("INFINIPOT_MODELS", Path.home() / ".cache" / "small-models"))
    path = folder / "qwen2.5-0.5b.gguf"
    if not path.exists():
        pytest.skip(f"{path} is not there: set INFINIPOT_MODELS to the folder that holds it")
    return load(str(path), device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory):
    """A random model in a folder, as the evaluation names it."""
    from commands import save_tiny

    from infinipot.eval.runner import Model

    folder = tmp_path_factory.mktemp("evaluated")
    save_tiny(folder)
    return Model(str(folder), "cpu", "float32")


@pytest.fixture(scope="session")
def replica(tiny):
    """The same, loaded."""
    from infinipot.eval.runner import Replica

    return Replica(tiny)
