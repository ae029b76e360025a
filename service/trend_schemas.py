"""Models of the answers on the course of the evaluations, for the API's description."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from adaptive_rec.service.answer_base import Answer


class BestEvaluation(Answer):
    step: int
    auc: float | None
    logloss: float | None
    value: Annotated[float | None, Field(description="By best_metric")] = None
    epoch: Annotated[int | None, Field(description="The pass over the data under way, from 1; 0: not known")] = None


class OverfitFigures(Answer):
    """The evaluations that show that training and evaluation loss have parted."""

    step: Annotated[int, Field(description="Of the evaluation that showed it")]
    logloss: Annotated[float, Field(description="Logloss then")]
    least_step: Annotated[int, Field(description="Of the evaluation of the least logloss")]
    least_logloss: float
    least_training_loss: Annotated[float, Field(description="Mean training loss before that evaluation")]
    training_loss: Annotated[float, Field(description="Mean training loss over the evaluations that were worse")]
    worse: Annotated[int, Field(description="How many in a row were worse")]
