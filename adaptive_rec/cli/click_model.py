"""`ClickModel`: the commands train, predict and export for programs with rows in memory, with scikit-learn's methods."""

from __future__ import annotations

import inspect
import json
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.cli.frames import AddedColumn, ArgumentError, Frame, frame_of, is_path, labels_beside, weights_beside
from adaptive_rec.cli.from_python import (
    ONE_AT_A_TIME,
    begin_use,
    frame_in_file,
    hot_tables,
    keep_file,
    named_as_arguments,
    options_as_words,
    prepared_for,
    scores_of_files,
    scores_of_frame,
    train_run,
)
from adaptive_rec.cli.parser import text_settings
from adaptive_rec.config.trust import TRUST, settings_in
from adaptive_rec.data.tabular.label import parse_label
from adaptive_rec.errors import UsageError
from adaptive_rec.run.new_directory import RUNS, replace_text

NOTES = "click_model.json"
"""The file in a run's directory with what only Python has of it: the classes of the label and the columns of X."""
KEYS = {
    "knobs.hot_budget_bytes": "budget", "knobs.policy": "policy", "data.epochs": "epochs", "eval.patience": "patience",
    "run.seed": "seed", "run.device": "device",
}  # fmt: skip
"""The keys of the configuration that parameters give."""


class ClickModel:
    """A model of clicks with tables in two tiers, trained and used as by the commands `train` and `predict`. It is a classifier
    of two classes by scikit-learn's conventions.

    `budget`: bytes of rows on the device, such as "64MiB" (`knobs.hot_budget_bytes`). `policy`, `seed`, `device`, `patience`,
    `schema` (a file), `time`, `weight` and `group` (columns) are the options of `train` of these names, `epochs` the key
    `data.epochs`. `settings`: any other keys, such as `{"run.batch_size": 1024}`. None leaves a setting as
    the command has it.

    `out`: the run's directory, which must be new; by default one in the folder `runs`, named after time and policy. `serve`:
    serve dashboard and API while it trains. `verbose`: print what the command prints; otherwise its warnings are Python's.

    Parameters are checked by `fit`.
    """

    _estimator_type = "classifier"

    def __init__(
        self, budget: str | int | None = None, *, policy: str | None = None, epochs: int | None = None,
        patience: int | None = None, seed: int | None = None, device: str | None = None,
        schema: str | os.PathLike[str] | None = None, time: str | None = None, weight: str | None = None,
        group: str | None = None, settings: Mapping[str, Any] | None = None,
        out: str | os.PathLike[str] | None = None, runs: str | os.PathLike[str] = str(RUNS), serve: bool = False,
        verbose: bool = True,
    ) -> None:  # fmt: skip
        self.budget, self.policy, self.epochs, self.patience = budget, policy, epochs, patience
        self.seed, self.device, self.schema = seed, device, schema
        self.time, self.weight, self.group = time, weight, group
        self.settings, self.out, self.runs, self.serve, self.verbose = settings, out, runs, serve, verbose

    # Parameters ------------------------------------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name. Raises ArgumentError for other names."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ArgumentError(f"a parameter of ClickModel must be one of {', '.join(known)}, got {name}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        standard = inspect.signature(type(self)).parameters
        given = [f"{name}={value!r}" for name, value in self.get_params().items() if value != standard[name].default]
        return f"{type(self).__name__}({', '.join(given)})"

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn, from 1.6 on, has to be told of a classifier."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        inputs = InputTags(categorical=True, string=True, allow_nan=True)
        classifier = ClassifierTags(multi_class=False)
        return Tags(
            estimator_type="classifier", target_tags=TargetTags(required=False), classifier_tags=classifier,
            transformer_tags=None, regressor_tags=None, input_tags=inputs, non_deterministic=False,
        )  # fmt: skip

    def __sklearn_is_fitted__(self) -> bool:
        return "_run" in vars(self)

    # Training --------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, label: str | None = None, sample_weight: Any = None) -> Self:
        """Train as `train --data X --label LABEL` does, and return this model.

        `X`: a pandas or polars frame, an Arrow table or record batch, a dictionary of columns, a NumPy array of rows and columns,
        or the path of a file or folder. `label`: a column of X with 0 and 1, or a comparison of one, such as "rating >= 4"; or
        `y`: a value of two for each row, where the second in order is what is predicted. `sample_weight`: how much each row
        counts, a number of at least 0. The command's defaults hold: the last tenth of the rows is held out for the score.

        Raises ArgumentError, which is a UsageError and a ValueError, for other arguments, and what ends the command: ConfigError,
        DataError, MemoryPlanError, CheckpointError, TrainingError. Ctrl-C stops the run after a step, with a checkpoint, and
        raises KeyboardInterrupt then; a second one raises it at once.
        """
        begin_use()
        if label is not None and not isinstance(label, str):
            raise ArgumentError(f"label must be one label, the name of a column, got {label!r}; train a model for each")
        with ONE_AT_A_TIME:
            if is_path(X):
                for name, given, other in (("y", y, "label"), ("sample_weight", sample_weight, "the parameter weight")):
                    if given is not None:
                        raise ArgumentError(f"{name} must be None where X is a path; give {other}, a column of the file")
                self._fit(os.fspath(X), label, self.weight)
                return self
            frame = frame_of(X)
            label = self._named_label(label)
            classes, labels = labels_beside(frame, y, label)
            weights = weights_beside(frame, sample_weight, list(labels))
            if weights and self.weight is not None:
                raise ArgumentError(f"sample_weight must be None where weight names a column, got weight={self.weight!r}")
            self._fit(frame, next(iter(labels), label), next(iter(weights), self.weight), classes, {**labels, **weights})
        return self

    def _named_label(self, label: str | None) -> str | None:
        """Return the label, where the schema names it and `fit` does not."""
        if label is not None or self.schema is None:
            return label
        from adaptive_rec.data.tabular.schema import load_schema

        return load_schema(Path(self.schema)).label

    def _fit(
        self,
        data: str | Frame,
        label: str | None,
        weight: str | None,
        classes: NDArray[Any] | None = None,
        added: Mapping[str, AddedColumn] | None = None,
    ) -> None:
        out = None if self.out is None else Path(self.out)
        runs = (Path(self.runs) if out is None else out.parent).absolute()
        shown = bool(self.verbose)
        options = {"label": label, "weight": weight, "group": self.group, "schema": self.schema, "time": self.time,
                   "policy": self.policy, "seed": self.seed, "device": self.device, "patience": self.patience}  # fmt: skip
        words = [*options_as_words(options), *(f"--set={setting}" for setting in self._settings())]
        words += ["--no-serve"] * (not self.serve)
        with TRUST.only([*words, *settings_in(os.environ)]), named_as_arguments() as called:
            if isinstance(data, str):
                args, config = prepared_for([f"--data={data}", *words], runs, shown)
            else:
                with frame_in_file(data, runs, added or {}) as path:
                    called[str(path)] = called[path.name] = "X"
                    args, config = prepared_for([f"--data={path}", *words], runs, shown)
                    if config.data.source == str(path):
                        keep_file(path)
            run, ended = train_run(args, config, runs, out, shown)
        self._run = run
        self.classes_ = np.array([0, 1]) if classes is None else classes
        vars(self).pop("feature_names_in_", None)
        if not isinstance(data, str):
            no_features = (None if label is None else parse_label(label).column, weight)
            names = [name for name in data.names if name not in no_features]
            self.n_features_in_ = len(names)
            if data.is_named:
                self.feature_names_in_ = np.array(names, dtype=object)
        notes = {"classes": self.classes_.tolist(), "columns": [str(name) for name in getattr(self, "feature_names_in_", ())]}
        replace_text(run / NOTES, json.dumps(notes) + "\n")
        if ended is not None:
            raise ended

    def _settings(self) -> list[str]:
        """Return the keys of the configuration that parameters give, as KEY=VALUE."""
        if not isinstance(self.settings, Mapping | None):
            raise ArgumentError(f"settings must be a dictionary of keys and values, got {self.settings!r}")
        settings, named = self.settings or {}, {"knobs.hot_budget_bytes": self.budget, "data.epochs": self.epochs}
        for key, name in KEYS.items():
            if key in settings and (value := getattr(self, name)) is not None:
                rule = f"settings must not have {key}, which the parameter {name} gives"
                raise ArgumentError(f"{rule}, got {settings[key]!r} and {value!r}")
        given = {**{key: value for key, value in named.items() if value is not None}, **settings}
        given = {key: value.tolist() if isinstance(value, np.generic | np.ndarray) else value for key, value in given.items()}
        try:
            return text_settings(given)
        except TypeError as error:
            raise ArgumentError(f"settings must be texts, numbers, truth values or lists of them: {error}") from None

    # Use -------------------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, run: str | os.PathLike[str]) -> Self:
        """Return the model of a run's directory, whether `fit` or the command has made it. Raises UsageError where there is none.
        Its parameters are those of a new `ClickModel`."""
        from adaptive_rec.run.inputs import check_trained
        from adaptive_rec.system.regular_files import read_json

        check_trained(Path(run))
        model = cls()
        model._run = Path(run).absolute()
        notes = read_json(model._run / NOTES) if (model._run / NOTES).is_file() else {}
        model.classes_ = np.array(notes.get("classes", [0, 1]))
        if notes.get("columns"):
            model.feature_names_in_ = np.array(notes["columns"], dtype=object)
            model.n_features_in_ = len(notes["columns"])
        return model

    @property
    def run(self) -> Path:
        """The directory of the run, which `adaptive-rec serve`, `report` and others take. Raises an error before `fit`."""
        if "_run" not in vars(self):
            raise not_fitted()
        return self._run

    @property
    def summary(self) -> dict[str, Any]:
        """The result of the run, as its `summary.json` has it."""
        from adaptive_rec.system.regular_files import read_json

        return dict(read_json(self.run / "summary.json"))

    @property
    def tables(self) -> list[dict[str, Any]]:
        """For each table its name, rows and dim, how many of its rows are hot and stale, and the ten most popular ones of those
        that are hot: id, value where the data has it, and estimated lookups."""
        return hot_tables(self.run)

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """Return the probability of both classes for each row, (rows, 2) float32: the second column is what `predict` writes.
        Raises ArgumentError and DataError where X lacks a column that the model was trained on."""
        scores_B = self._scores(X)
        return np.column_stack([1 - scores_B, scores_B])

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the likelier class of each row, by scikit-learn's convention; `predict_proba` has probabilities."""
        scores_B = self._scores(X)
        return np.asarray(self.classes_[(scores_B > 0.5).astype(int)])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of rows whose class is predicted. For clicks, which are rare, `scoring="roc_auc"` says more."""
        return float(np.average(self.predict(X) == np.asarray(y), weights=sample_weight))

    def export(self, to: str | os.PathLike[str], onnx: bool = False) -> Path:
        """Write the model to a new folder that plain PyTorch reads, as the command `export` does, and return the folder."""
        from adaptive_rec.system.durable import check_new_folder

        check_new_folder(Path(to), "to")
        run = self.run
        begin_use()
        with ONE_AT_A_TIME, TRUST.only(settings_in(os.environ)):
            from adaptive_rec.offline.export.write import export_model

            export_model(run, Path(to), onnx, lambda text: warnings.warn(text, stacklevel=3))
        return Path(to)

    def _scores(self, X: Any) -> NDArray[np.float32]:
        run = self.run
        begin_use()
        with ONE_AT_A_TIME, TRUST.only(settings_in(os.environ)):
            if is_path(X):
                return scores_of_files(run, Path(X))
            names = getattr(self, "feature_names_in_", None)
            frame = frame_of(X, names=None if names is None else names.tolist())
            expected = getattr(self, "n_features_in_", None)
            if not frame.is_named and expected not in (None, len(frame.names)):
                raise ArgumentError(
                    f"X has {len(frame.names)} features, but {type(self).__name__} is expecting {expected} features as input"
                )
            return scores_of_frame(run, frame)


def not_fitted() -> Exception:
    """Return scikit-learn's error where a program uses it, else ours."""
    text = "This ClickModel instance is not fitted yet: call fit, or ClickModel.load(RUN)"
    known = getattr(sys.modules.get("sklearn.exceptions"), "NotFittedError", None)
    return UsageError(text) if known is None else known(text)
