"""Metadata of tensor files: what all schemas of them share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Metadata(BaseModel):
    """Base of the metadata of one kind of file. Other keys may stand beside those that it names."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


Place = Annotated[int, Field(ge=0)]
Amount = Annotated[int, Field(ge=1)]
