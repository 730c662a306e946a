"""``llama-lab lr-range``: find the learning rates that suit a config, with one short training."""

from __future__ import annotations

import shlex
from pathlib import Path

from llama_lab.commands.ablate import require_extra
from llama_lab.configs import logs_folder
from llama_lab.errors import RunError, UserError
from llama_lab.parsing import OF_FIT, Flag, Parser, split_flags

DESCRIPTION = (
    "A learning-rate range test (Smith 2017): trains for a few hundred steps, each at a higher "
    "rate than the one before, until the loss diverges. It shows the rate at which the loss falls "
    "fastest and the rate at which it is lowest, if it falls by more than its noise, and writes "
    "report.html, results.csv and "
    "results.json (steps, trainings, fall, fall_by_chance, steepest_lr, lowest_lr, "
    "lowest_lr_of_each, lowest_loss, highest_lr, rates, losses, smoothed). Flags of `fit` "
    "(--model.optimizer.kind muon, --data.corpus FILE, …) override the config. If groups of "
    "parameters have different rates, all rates grow in proportion, and the rate that is shown is "
    "--model.optimizer.lr. The trained weights are not kept."
)
OF_RUN = (*OF_FIT, "--seed_everything")
DECIDED = (
    "--trainer.max_steps",
    "--trainer.val_check_interval",
    "--trainer.log_every_n_steps",
    "--model.schedule",
    "--model.averaging",
)


def main(argv: list[str], prog: str) -> int:
    """Run the command; 0 where it succeeds.

    Raises:
        UserError: A flag is refused, by this command or by ``fit``.
        RunError: Not even the first steps were sound.
    """
    own, flags = split_flags(argv, OF_RUN)
    parser = build_parser(prog)
    options = parser.parse_args(own)
    refuse_decided(flags)
    require_extra()
    from llama_lab.reports.range_report import write_range
    from llama_lab.runs.command_line import quiet
    from llama_lab.runs.rate_range import RangeTest, averaged, train_all

    quiet()
    test = RangeTest(
        lr_min=options.lr_min,
        lr_max=options.lr_max,
        steps=options.steps,
        repeats=options.repeats,
    )
    name = Path(options.CONFIG).stem
    folder = Path(options.output) if options.output else logs_folder(None) / "lr-range" / name
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--output {folder}: is a file; name a folder")
    config = [f"--config={options.CONFIG}", *(f"{f.name}={f.value}" for f in flags)]
    trials, is_first = train_all(config, test)
    if not is_first:
        return 0
    trial = averaged(trials)
    if len(trial.rates) < test.steps // 10:
        raise RunError(
            f"the loss was not finite after {len(trial.rates)} steps, at a rate of "
            f"{test.rate(len(trial.rates)):.2g}; lower --lr_min"
        )
    folder.mkdir(parents=True, exist_ok=True)
    command = " ".join(["llama-lab", "lr-range", *map(shlex.quote, argv)])
    print("\n".join(write_range(name, trial, command, folder)))
    print(f"\nreport: {folder / 'report.html'}", flush=True)
    return 0


def build_parser(prog: str) -> Parser:
    """The command's flags."""
    from llama_lab.runs.rate_range import RangeTest

    parser = Parser(prog=prog, description=DESCRIPTION)
    parser.add_argument(
        "CONFIG", type=str, help="The config that `fit` would train: its name or its file."
    )
    parser.add_class_arguments(RangeTest)
    parser.add_argument(
        "--output",
        type=str | None,
        default=None,
        help="Folder of the report; null means logs/lr-range/CONFIG.",
    )
    return parser


def refuse_decided(flags: list[Flag]) -> None:
    """Refuse what the test decides itself.

    Raises:
        UserError: It is given.
    """
    for flag in flags:
        if any(flag.name == name or flag.name.startswith(f"{name}.") for name in DECIDED):
            raise UserError(
                f"{flag.name} {flag.value} would do nothing: the rate grows over --steps steps, "
                "and nothing is validated; leave it out"
            )
