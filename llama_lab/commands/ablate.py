"""``llama-lab ablate``: a controlled study, from its file to its report."""

from __future__ import annotations

import importlib.util
import shlex
from typing import TYPE_CHECKING, Any

from llama_lab.configs import logs_folder
from llama_lab.errors import Stopped, UserError
from llama_lab.parsing import OF_FIT, Parser, split_flags

if TYPE_CHECKING:
    from argparse import Namespace

    from llama_lab.kernels.kernel_study import PartStudy
    from llama_lab.studies.estimate import Estimate
    from llama_lab.studies.results import StudyResult
    from llama_lab.studies.study_run import StudyRun

DESCRIPTION = (
    "Runs a study: trains every arm with every seed on the same work, compares them, and writes "
    "report.html, report.md, results.csv and results.json into logs/studies/NAME. If you start it "
    "again, it keeps the finished runs and resumes the others. Flags of `fit` "
    "(--trainer.max_steps 5000, --data.corpus FILE, …) override the study's settings for every "
    "arm. A study of parts trains nothing: it times two implementations of each part, such as "
    "plain and fused."
)


def main(argv: list[str], prog: str) -> int:
    """Run the command; 0 where it succeeds.

    Raises:
        UserError: The study, a flag or an arm is refused.
        RunError: Two runs did not do the same work.
    """
    own, overrides = split_overrides(argv)
    options = build_parser(prog).parse_args(own)
    for name in ("jobs", "threads"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} {value}: must be 1 or more")
    require_extra()
    from llama_lab.kernels.kernel_study import read_part_study
    from llama_lab.kernels.pairs import PARTS
    from llama_lab.runs.automatic import work_alone
    from llama_lab.runs.command_line import quiet
    from llama_lab.studies.study import read_study
    from llama_lab.studies.study_run import StudyRun

    quiet()
    work_alone("llama-lab ablate")
    command = " ".join(["llama-lab", "ablate", *map(shlex.quote, argv)])
    part_study = read_part_study(options.config, tuple(PARTS))
    if part_study is not None:
        refuse_for_parts(options, overrides)
        return measure_parts(part_study, command, options.threads, options.report_only)
    study, _ = read_study(options.config, overrides, options.seeds)
    run = StudyRun(study, logs_folder(None).absolute(), options.jobs, options.threads)
    with run.open():
        return carry_out(run, command, report_only=options.report_only)


def require_extra() -> None:
    """Find out before anything is trained that the report could not be made.

    Raises:
        UserError: A package of the extra is missing.
    """
    missing = [name for name in ("scipy", "plotly") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"ablate needs {' and '.join(missing)} for its statistics and its report: "
            "pip install 'llama-lab[lab]'"
        )


def build_parser(prog: str) -> Parser:
    """The command's flags."""
    parser = Parser(prog=prog, description=DESCRIPTION)
    parser.add_argument(
        "--config",
        type=str,
        required=True,
        help="The study: its file, or its name in configs/studies.",
    )
    parser.add_argument(
        "--seeds",
        type=list[int] | None,
        default=None,
        help="Seeds that replace those of the study's file, such as [0,1,2].",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="Number of runs at the same time; on CUDA each run has its own GPU.",
    )
    parser.add_argument(
        "--threads",
        type=int | None,
        default=None,
        help="Number of CPU threads of each run; null means OMP_NUM_THREADS, or an equal share of "
        "the cores for each job. A study that is started again keeps its number.",
    )
    parser.add_argument(
        "--report_only",
        type=bool,
        default=False,
        help="Train nothing, and write the report from the runs that are finished.",
    )
    return parser


def split_overrides(argv: list[str]) -> tuple[list[str], dict[str, Any]]:
    """The command's own arguments, and the settings that are for every arm.

    Raises:
        UserError: A setting has no value.
    """
    from llama_lab.yaml_text import parse_yaml  # `--help` comes without it

    own, flags = split_flags(argv, OF_FIT)
    return own, {f.name.removeprefix("--"): parse_yaml(f.value, f.name) for f in flags}


def refuse_for_parts(options: Namespace, overrides: dict[str, Any]) -> None:
    """Refuse what would do nothing in a study of parts.

    Raises:
        UserError: It is given.
    """
    idle = {f"--{name}": value for name, value in overrides.items()}
    if options.seeds is not None:
        idle["--seeds"] = options.seeds
    if options.jobs != 1:
        idle["--jobs"] = options.jobs
    for flag, value in idle.items():
        raise UserError(
            f"{flag} {value} would do nothing: a study of parts trains nothing, and times one part "
            "after the other; leave it out (sizes, turns and precision are set in the study's file)"
        )


def measure_parts(study: PartStudy, command: str, threads: int | None, report_only: bool) -> int:
    """Time every part, a line each, and report."""
    from llama_lab.kernels.kernel_report import line, read_part_report, write_part_report
    from llama_lab.kernels.kernel_run import run_parts
    from llama_lab.studies.ledger import alone_in, refuse_trained
    from llama_lab.studies.study_run import default_threads

    folder = logs_folder(None).absolute() / "studies" / study.name
    refuse_trained(folder)
    if report_only:
        write_part_report(read_part_report(folder), folder)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        n_threads = threads or default_threads(1)
        print(
            f"study  {study.name}: {len(study.parts)} parts x {len(study.sizes)} sizes, "
            f"{study.turns} turns, {n_threads} thread(s); {folder}",
            flush=True,
        )
        width = max(map(len, study.parts))
        with alone_in(folder):
            report = run_parts(
                study, command, n_threads, lambda part: print(line(part, width), flush=True)
            )
            write_part_report(report, folder)
    print(f"\nreport: {folder / 'report.html'}", flush=True)
    return 0


def carry_out(run: StudyRun, command: str, *, report_only: bool) -> int:
    """Plan, say what will be done, do it, and report."""
    from llama_lab.reports.study_report import write_reports
    from llama_lab.studies.conclude import conclude

    with run.pool() as pool:
        estimate = run.plan(pool)
        print("\n".join(announcement(run, estimate)), flush=True)
        if not report_only:
            try:
                if run.study.tune:
                    run.tune(pool)
                run.train(pool, run.runs(), run.study.name)
            except Stopped as stop:
                raise Stopped(
                    stop.signum,
                    f"{stop}; finished runs are kept, others saved: the same command goes on",
                ) from stop
    result = conclude(run, command)
    note_look(run)
    write_reports(result, run.folder)
    print("\n".join(verdicts(result)))
    print(f"\nreport: {run.folder / 'report.html'}", flush=True)
    return 0


def note_look(run: StudyRun) -> None:
    """Remember that verdicts over so many seeds have been seen."""
    seeds = len(run.study.seeds)
    if not run.runs_left() and seeds > 1 and seeds not in run.ledger.looks:
        run.ledger.looks.append(seeds)
    run.ledger.save()


def announcement(run: StudyRun, estimate: Estimate) -> list[str]:
    """What the study is, what it will run, and about how long that takes."""
    from llama_lab.runs.run_progress import clock

    study, left = run.study, run.runs_left()
    first = run.arms[0]
    lines = [
        f"study  {study.name}: {len(run.arms)} arms x {len(study.seeds)} seeds, "
        f"{study.when} {study.measure}; {run.folder}",
        f"work   {first.steps:,} steps of {first.batch_size} x {first.context} tokens each; "
        f"{run.jobs} at once, {run.ledger.threads} thread(s) each",
    ]
    for planned in run.arms:
        name = planned.arm.name
        matched = f"; {planned.matched}" if planned.matched else ""
        lines.append(
            f"  {name:<24} {planned.parameters:>12,} parameters, "
            f"about {clock(estimate.per_run[name])} a run{matched}"
        )
    if study.tune:
        trials = len(study.trials()) * len(study.tune_seeds)
        lines.append(f"tuning {trials} trials an arm over {', '.join(study.tune)}")
    lines += run.resolver.left_out
    done = len(run.runs()) - len(left)
    kept = f"{done} runs are finished; " if done else ""
    lines.append(f"time   {kept}about {clock(estimate.left)} for the {len(left)} left")
    return lines


def verdicts(result: StudyResult) -> list[str]:
    """The conclusions, an arm a line."""
    width = max(len(arm.name) for arm in result.family.arms)
    lines = [f"{arm.name:<{width}}  {arm.sentence}" for arm in result.family.arms]
    return ["", *lines, *result.notes]
