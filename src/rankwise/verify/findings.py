"""What can be found: each finding has a code, says what was seen, why it is so, and what to change in the script."""

from __future__ import annotations

from dataclasses import dataclass

REMEDIES = {
    "could_not_run": "Run the script by itself in this layout, and correct what its message says.",
    "unequal_steps": "Give every rank the same number of batches: with rankwise run.loader does, with torch a "
                     "DistributedSampler, or `with Join([model])`.",
    "stuck": "See that every rank comes to the same collectives in the same order, and to the same number of backward "
             "passes; `rankwise run --debug` names the call that differs.",
    "collectives": "Let every rank call the same collectives in the same order: sort what is iterated over, and let no "
                   "branch before them depend on the rank or its data.",
    "no_movement": "See that the loss depends on the weights, that optimizer.step() is called, and that the learning "
                   "rate is not 0.",
    "unseeded": "Seed what draws the weights, the order and the augmentation: torch.manual_seed(seed) on every rank, "
                "and a generator of its own for the order.",
    "weights_differ_at_start": "Build the model from the same seed on every rank, or wrap it (run.prepare, "
                               "DistributedDataParallel) after its weights are final: wrapping copies rank 0's.",
    "initial_weights": "Build the model from the same seed whatever the world size is.",
    "batch_size_scaled": "Divide the batch size by the world size, so that the global batch stays; run.loader takes "
                         "the global batch.",
    "samples_repeated": "Give each rank its own part: run.loader does, with torch a DistributedSampler.",
    "samples_overlap": "Use one order on all ranks and cut it: the seed of the shuffle must not depend on the rank, "
                       "and set_epoch must be called alike.",
    "samples_padded": "Do not repeat samples to fill the ranks up: run.loader takes ragged batches, a "
                      "DistributedSampler does not.",
    "samples_dropped": "Do not drop the last samples: run.loader takes ragged batches; with torch use drop_last=False.",
    "samples_changed": "Draw the augmentation by sample, not by rank or worker: run.loader seeds each sample by its "
                       "index.",
    "samples_order": "Let the order depend on the seed and the epoch alone; run.loader's is the same for any number "
                     "of devices.",
    "learning_rate_scaled": "Keep the learning rate: the global batch is the same, so the step is. Where a larger "
                            "batch is wanted, scale both on one device as well.",
    "learning_rate_on_ranks": "Let a schedule follow a number that all ranks share: run.mean(loss), or an all_reduce "
                              "of it.",
    "learning_rate": "Let the learning rate depend on the step alone, not on the rank or the world size.",
    "settings": "Give the optimizer the same settings on every rank and in every layout.",
    "not_reduced": "Call the wrapped model, not model.module or one of its layers; with rankwise call run.step, not "
                   "loss.backward().",
    "not_reduced_partly": "Wrap the model last: after layers were replaced, added, frozen or unfrozen; with rankwise "
                          "call run.prepare then.",
    "weights_part": "Do not change weights on some ranks alone; after such a change wrap the model anew or broadcast.",
    "buffers_part": "Update buffers from numbers that all ranks share, or broadcast them; rankwise averages the "
                    "statistics of BatchNorm and copies rank 0's other buffers.",
    "clip_per_rank": "Clip after the gradients are averaged: run.step(loss, optimizer, clip_norm=...), or "
                     "clip_grad_norm_ after the backward of the wrapped model.",
    "loss_not_weighted": "Weigh each rank's mean by its rows: run.step does; by hand, loss * rows * world_size / "
                         "global_rows.",
    "loss_weights": "Where the loss is a mean over tokens, classes or masks, give its denominator: run.step(loss, "
                    "optimizer, weight=tokens).",
    "gradient_scaled": "Divide the sum of the gradients by the world size, or do not sum a mean over ranks: the "
                       "gradient is that of the mean over the global batch.",
    "dropout": "Each rank draws its own masks, the same in distribution: accept it, or use --exact V, which keys the "
               "masks by shard.",
    "batchnorm": "Each device normalises its own slice: run.prepare(model, sync_batchnorm=True) takes the whole "
                 "batch; or use GroupNorm or LayerNorm.",
    "seeds": "Something draws from a generator whose seed depends on the rank or the number of ranks: seed it alike on "
             "every rank, or draw by sample.",
    "augmentation": "Draw the augmentation by sample, not by rank or worker: run.loader seeds each sample by "
                    "its index.",
    "rounding": "The runs part by rounding alone, which this training makes grow: use --exact V where the same bits "
                "are needed, or compare fewer steps.",
    "unexplained": "Compare the first step and tensor that differ by hand; a custom layer, hook or loss that looks at "
                   "the batch as a whole, or at the rank, is the usual reason.",
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that makes a layout another training. `ranks`, `step` and `tensor` say where it shows first."""

    code: str
    seen: str
    cause: str
    layout: str = ""
    step: int | None = None
    tensor: str | None = None
    ranks: tuple[int, ...] = ()

    @property
    def remedy(self) -> str:
        return REMEDIES[self.code]
