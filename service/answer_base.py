"""What all models of answers share."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from adaptive_rec.config.figures import Part, of_part


class Answer(BaseModel):
    """Base of all answers."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)


def example(**values: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [values]})


def figures_model(name: str, part: Part, doc: str) -> type[Answer]:
    """Return the model of the figures of a part of a snapshot (`config/figures.py`)."""
    fields: dict[str, Any] = {
        each.field: (
            (float | None, Field(None, description=each.about))
            if each.is_new
            else (int if each.is_whole else float, Field(description=each.about) if each.about else ...)
        )
        for each in of_part(part)
        if each.is_in_api
    }
    return create_model(name, __base__=Answer, __doc__=doc, **fields)
