"""Hugging Face's datasets: what map holds before it writes."""

from typing import Any

from .. import imports
from . import feeding


def install(datasets: Any) -> None:
    imports.when_imported("datasets.arrow_dataset", feeding.hook_datasets)
    imports.when_imported("datasets.arrow_writer", feeding.hook_arrow_writer)
