"""Forty studies of nothing: how often does a study give a verdict where there is no difference?

    python benchmarks/aa_studies.py

Each study compares a tiny model with itself, the arm's seeds being other seeds than the base's: so
initial weights and order differ, and nothing else does. Five seeds each, real runs through the
workers, receipts and statistics of `llama-lab ablate`. With a level of 5 % two verdicts are
expected, and at most 5 of 40 is the bar (a chance of 1.4 % to fail it by bad luck).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from llama_lab.runs.command_line import quiet
from llama_lab.studies.conclude import conclude
from llama_lab.studies.pool import Pool
from llama_lab.studies.study import Study, parse_study
from llama_lab.studies.study_run import StudyRun

STUDIES, SEEDS, BAR = 40, 5, 5


def study(number: int) -> Study:
    """The ``number``-th: no seed is in two studies, or in both arms."""
    first = number * SEEDS
    return parse_study(
        f"aa-{number}",
        {
            "base": "llama.yaml",
            "seeds": list(range(first, first + SEEDS)),
            "arms": {"again": {"seed_offset": STUDIES * SEEDS}},
            "settings": {
                "model.decoder": {"dim": 16, "n_layers": 1, "context_length": 16},
                "model.schedule.warmup_steps": 5,
                "data.batch_size": 8,
                "data.val_fraction": 0.01,
                "trainer": {"max_steps": 60, "val_check_interval": 30},
            },
        },
    )


def main() -> None:
    """Run and report."""
    quiet()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    verdicts = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with Pool(1, 1) as pool:
            for number in range(STUDIES):
                run = StudyRun(study(number), Path("logs").absolute(), threads=1)
                with run.open():
                    run.plan(pool)
                    run.train(pool, run.runs(), run.study.name)
                    family = conclude(run, "").family
                arm = family.arms[0]
                verdicts += arm.verdict in ("pays", "costs")
                print(f"study {number + 1:>2}: {arm.sentence}", flush=True)
    print(f"{verdicts} verdicts in {STUDIES} studies of nothing (bar: at most {BAR})")


if __name__ == "__main__":
    main()
