"""Trials: short jobs of a target, each in a layout of its own, that measure their steps."""

from __future__ import annotations

from rankwise.trials.jobs import Trials
from rankwise.trials.result import RankTrial, Trial

__all__ = ["RankTrial", "Trial", "Trials"]
