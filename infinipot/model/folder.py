"""The files of a model's folder: which of them hold the model, and what is wrong with them."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infinipot.checks import ModelWarning

AGAIN = "Download it again."
POINTER = b"version https://git-lfs"
"""The start of a file that stands for a file that git-lfs has not fetched."""
FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "processor_config.json",
    "preprocessor_config.json",
)
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""What holds or lists the weights; transformers takes the first that is there."""
FLOATS = {"F64", "F32", "F16", "BF16"}
"""Types of numbers, as safetensors calls them, of weights that are not quantised."""
SHOWN = 4
"""How many names an error lists."""


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(names[:SHOWN])
    if len(names) > SHOWN:
        shown += f" and {len(names) - SHOWN} more"
    return shown


def check_file(path: Path) -> None:
    """Refuse a file that is missing, empty, or only a pointer of git-lfs."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing. {AGAIN}")
    with path.open("rb") as file:
        start = file.read(len(POINTER))
    if not start:
        raise ValueError(f"{path} is empty. {AGAIN}")
    if start == POINTER:
        raise ValueError(
            f"{path} is a git-lfs pointer, not the file itself. Run `git lfs pull` in its folder, "
            "or download the file."
        )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ValueError for other content, and for a key that stands in
    one object twice."""
    check_file(path)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"the key {twice!r} stands there twice: leave one")
        return fields

    try:
        content = json.loads(path.read_text("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as problem:
        raise ValueError(
            f"{path} is no usable JSON file ({problem}). Mend it, or download it."
        ) from (problem)
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, not a {type(content).__name__}. {AGAIN}")
    return content


def gguf_of(folder: Path) -> Path | None:
    """The folder's only GGUF file, if the folder has no other weights. Raises ValueError for several
    GGUF files."""
    if any((folder / name).exists() for name in WEIGHTS):
        return None
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".gguf")
    if len(found) > 1:
        names = listed([path.name for path in found])
        raise ValueError(f"{folder} holds {len(found)} GGUF files: give one of them ({names})")
    return next(iter(found), None)


def check_folder(folder: Path) -> None:
    """Refuse a folder whose files are missing, damaged, or disagree about the weights.

    Raises FileNotFoundError or ValueError, which name the file. Warns with ModelWarning of code that
    the folder brings.
    """
    if (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
        raise ValueError(
            f"{folder} holds an adapter, not a model. Merge it into its model, save the result "
            "(merge_and_unload, save_pretrained), and give that folder."
        )
    if not (folder / "config.json").exists():
        raise FileNotFoundError(
            f"{folder} holds no model: it has no config.json and no .gguf file. Give a folder "
            "written by save_pretrained, or a .gguf file."
        )
    contents = {name: read_json(folder / name) for name in FILES if (folder / name).exists()}
    code = [name for name, content in contents.items() if "auto_map" in content]
    code += [name for name in ("custom_generate",) if (folder / name).exists()]
    warn_of_code(folder, code)
    quantised = "quantization_config" in contents["config.json"]
    for shard in shards_of(folder):
        check_file(shard)
        if shard.suffix == ".safetensors":
            check_types(shard, tensors_of(shard), quantised)
        else:
            check_archive(shard)


def check_archive(path: Path) -> None:
    """Refuse a file of torch.save that is cut short: the list of its contents stands at its end."""
    with path.open("rb") as file:
        start = file.read(2)
    if start == b"PK" and not zipfile.is_zipfile(path):
        raise ValueError(
            f"{path} is cut short or damaged: its list of contents is missing. {AGAIN}"
        )


def warn_of_code(source: Path | str, names: list[str]) -> None:
    """Warn of code that a model brings, if files of these names say so."""
    if names:
        warnings.warn(
            f"{source} brings its own code ({', '.join(names)}), which is not run: transformers' "
            "own classes are used",
            ModelWarning,
            stacklevel=5,
        )


def shards_of(folder: Path) -> list[Path]:
    """The files that hold the weights. Raises FileNotFoundError if there are none, and ValueError for
    an index that does not fit its files."""
    name = next((name for name in WEIGHTS if (folder / name).exists()), None)
    if name is None:
        raise FileNotFoundError(
            f"{folder} holds no weights: none of {', '.join(WEIGHTS)} is there. Download them."
        )
    if not name.endswith(".index.json"):
        return [folder / name]
    index = folder / name
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ValueError(f"{index} has no usable weight_map. {AGAIN}")
    shards = [folder / str(shard) for shard in sorted(set(map(str, places.values())))]
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise FileNotFoundError(
            f"{folder}: weights are missing. {index.name} names {listed(missing)}, which "
            "is not there. Download what is missing."
        )
    for shard in shards:
        if shard.suffix == ".safetensors":
            check_index(index, shard, {key for key, file in places.items() if file == shard.name})
    return shards


def check_index(index: Path, shard: Path, expected: set[str]) -> None:
    """Refuse a shard that holds other tensors than the index says."""
    check_file(shard)
    actual = set(tensors_of(shard))
    absent = sorted(expected - actual)
    extra = sorted(actual - expected)
    if absent:
        raise ValueError(
            f"{shard} does not hold {listed(absent)}, which {index.name} says. {AGAIN}"
        )
    if extra:
        raise ValueError(
            f"{shard} holds {listed(extra)}, of which {index.name} says nothing. {AGAIN}"
        )


def tensors_of(path: Path) -> dict[str, dict[str, Any]]:
    """The tensors that a safetensors file describes: name -> dtype, shape, data_offsets. Raises
    ValueError for a file that is cut short or damaged."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > size - 8:
                raise ValueError(f"its header of {length:,} bytes is longer than the file")
            fields = json.loads(file.read(length))
        tensors = {name: about for name, about in fields.items() if name != "__metadata__"}
        end = 8 + length + max((about["data_offsets"][1] for about in tensors.values()), default=0)
        if end != size:
            raise ValueError(f"it has {size:,} bytes, and should have {end:,}")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as problem:
        raise ValueError(f"{path} is cut short or damaged ({problem}). {AGAIN}") from problem
    return tensors


def check_types(path: Path, tensors: dict[str, dict[str, Any]], quantised: bool) -> None:
    """Refuse weights of a type that only a quantised model can have."""
    odd = {name: about["dtype"] for name, about in tensors.items() if about["dtype"] not in FLOATS}
    if odd and not quantised:
        name, kind = next(iter(odd.items()))
        raise ValueError(
            f"{path}: {len(odd)} weights are no floating-point numbers ({name} is {kind}), and "
            "config.json names no quantization_config that says how to read them. Download the "
            "folder again, or take the model's unquantised weights."
        )
