"""The names that a training function takes from ray.train, for a study of memroom.tune:

from memroom import train, tune      # was: from ray import train, tune
"""

from .tune import (
    Checkpoint as Checkpoint,
)
from .tune import (
    CheckpointConfig as CheckpointConfig,
)
from .tune import (
    FailureConfig as FailureConfig,
)
from .tune import (
    Result as Result,
)
from .tune import (
    RunConfig as RunConfig,
)
from .tune import (
    get_checkpoint as get_checkpoint,
)
from .tune import (
    get_context as get_context,
)
from .tune import (
    report as report,
)
