"""adaptive-rec: train recommendation models whose embedding tables do not fit in GPU memory."""

# Nothing of the standard library but `sys`, which is no file, is imported here: in `python -m adaptive_rec` the working directory
# is still the first place of modules, and `typing.py` there would be executed.
import sys

from adaptive_rec.system.version import __version__ as __version__
from adaptive_rec.system.version import warning_here as _warning_here

# An editable install puts a name that is no folder on the module path. A folder of that name in the working directory would be
# searched for installed packages, whose entry points torch calls when it is imported.
sys.path[:] = [place for place in sys.path if not str(place).startswith("__editable__.adaptive_rec-")]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from adaptive_rec.cli.click_model import ClickModel as ClickModel
    from adaptive_rec.errors import AdaptiveRecError as AdaptiveRecError
    from adaptive_rec.errors import ConfigError as ConfigError
    from adaptive_rec.modules.api.bag import AdaptiveEmbedding as AdaptiveEmbedding
    from adaptive_rec.modules.api.bag import AdaptiveEmbeddingBag as AdaptiveEmbeddingBag
    from adaptive_rec.modules.api.collection import AdaptiveEmbeddingBagCollection as AdaptiveEmbeddingBagCollection
    from adaptive_rec.modules.api.collection import PooledVectors as PooledVectors
    from adaptive_rec.modules.api.collection_tables import EmbeddingBagConfig as EmbeddingBagConfig
    from adaptive_rec.modules.api.embedding_collection import AdaptiveEmbeddingCollection as AdaptiveEmbeddingCollection
    from adaptive_rec.modules.api.embedding_collection import JaggedVectors as JaggedVectors
    from adaptive_rec.modules.api.options import Options as Options
    from adaptive_rec.modules.api.raw_id_modules import RawIdEmbedding as RawIdEmbedding
    from adaptive_rec.modules.api.raw_id_modules import RawIdEmbeddingBag as RawIdEmbeddingBag
    from adaptive_rec.modules.api.wrap import unwrap as unwrap
    from adaptive_rec.modules.api.wrap import wrap as wrap
    from adaptive_rec.modules.loop.embedding_runtime import EmbeddingRuntime as EmbeddingRuntime
    from adaptive_rec.modules.loop.row_gradient import RowGradient as RowGradient
    from adaptive_rec.modules.loop.stats import RuntimeStats as RuntimeStats
    from adaptive_rec.modules.tensors.weight import TieredWeight as TieredWeight

_PUBLIC = {
    "AdaptiveEmbedding": "modules.api.bag",
    "AdaptiveEmbeddingBag": "modules.api.bag",
    "AdaptiveEmbeddingBagCollection": "modules.api.collection",
    "AdaptiveEmbeddingCollection": "modules.api.embedding_collection",
    "AdaptiveRecError": "errors",
    "ClickModel": "cli.click_model",
    "ConfigError": "errors",
    "EmbeddingBagConfig": "modules.api.collection_tables",
    "EmbeddingRuntime": "modules.loop.embedding_runtime",
    "JaggedVectors": "modules.api.embedding_collection",
    "Options": "modules.api.options",
    "PooledVectors": "modules.api.collection",
    "RawIdEmbedding": "modules.api.raw_id_modules",
    "RawIdEmbeddingBag": "modules.api.raw_id_modules",
    "RowGradient": "modules.loop.row_gradient",
    "RuntimeStats": "modules.loop.stats",
    "TieredWeight": "modules.tensors.weight",
    "unwrap": "modules.api.wrap",
    "wrap": "modules.api.wrap",
}
"""Names for programs, and where they are: found when they are asked for, as torch takes a second to load."""

_WARNED: "list[str]" = []
"""The name at whose first use versions were looked at."""

__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str) -> "Any":
    import importlib

    if name not in _PUBLIC:
        raise AttributeError(f"module adaptive_rec has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"adaptive_rec.{_PUBLIC[name]}"), name)
    if not _WARNED:  # the first of these names
        import warnings

        _WARNED.append(name)
        if text := _warning_here():
            warnings.warn(text, RuntimeWarning, stacklevel=2)
    return found


def __dir__() -> "list[str]":
    return sorted({*globals(), *_PUBLIC})
