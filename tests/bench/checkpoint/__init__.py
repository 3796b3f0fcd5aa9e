"""On a real GPU: checkpoints of programs that run on, and sessions filled from them. One file a measurement."""

from typing import Final

from tests.bench.checkpoint import attack, migration, restoring, serving, snapshot, training, whole_images

MEASUREMENTS: Final = (
    training.MEASUREMENT,
    whole_images.MEASUREMENT,
    serving.MEASUREMENT,
    attack.MEASUREMENT,
    restoring.MEASUREMENT,
    training.WITHOUT_SPARE,
    migration.MEASUREMENT,
    snapshot.MEASUREMENT,
)
