"""Metadata of tensor files: the base of their schemas."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Metadata(BaseModel):
    """Base of the metadata of one kind of file. Keys beyond those that it names are allowed."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


Place = Annotated[int, Field(ge=0)]
Amount = Annotated[int, Field(ge=1)]
