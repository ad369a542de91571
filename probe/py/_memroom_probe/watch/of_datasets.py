"""Hugging Face's datasets: what map holds before it writes."""

from .. import imports
from . import feeding


def install(datasets):
    imports.when_imported("datasets.arrow_dataset", feeding.hook_datasets)
    imports.when_imported("datasets.arrow_writer", feeding.hook_arrow_writer)
