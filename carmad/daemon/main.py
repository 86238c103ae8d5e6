"""`carmad`: puts the daemon together, runs it until it is told to stop, and takes it apart."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import functools
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event

from carmad import beats, configfile, installed, paths, registry, units
from carmad.api.app import create_app
from carmad.api.service import Service
from carmad.attempt.evidence import Evidence
from carmad.attempt.launcher import Copies, Launcher
from carmad.config import Settings
from carmad.core.history import History
from carmad.core.messages import CancelRequested, Reconfigured, Step, Trained
from carmad.core.scene import Scene
from carmad.core.scheduler import Scheduler
from carmad.core.types import GpuId, JobId, JobSpec, JobState, Refusal
from carmad.daemon import doctor
from carmad.daemon.housekeeping import Housekeeping, release, weekly_report
from carmad.daemon.monitor import Externals, Monitor, MpsWatch
from carmad.daemon.runners import Runners
from carmad.daemon.service import (
    EMULATED,
    Reloader,
    is_service,
    listen,
    listen_fds,
    notify,
    read_settings,
    watchdog,
)
from carmad.daemon.slurmnode import SlurmNode, grant_gib
from carmad.daemon.world import DaemonWorld
from carmad.engine.clock import Clock, Wall, boot_id, wall_ahead
from carmad.engine.engine import Engine
from carmad.engine.inbox import Inbox
from carmad.errors import CarmaError, Hopeless
from carmad.gpu import emulated
from carmad.gpu.mps import Mps
from carmad.gpu.nvml import choose
from carmad.guards import Trouble
from carmad.http.server import Server, turn_away
from carmad.installed import VERSION
from carmad.learned import attendant
from carmad.learned.estimates import Answer, ask, ask_all, patient
from carmad.learned.experience import JOBS_PER_USER, Experience, driver_version
from carmad.learned.models import Models
from carmad.loop import Follower
from carmad.metrics.keeper import Keeper
from carmad.models import Model
from carmad.notify.letters import stuck
from carmad.notify.post import Post
from carmad.store.damage import stands_in
from carmad.store.journal import Journal
from carmad.store.sql import SqlStore
from carmad.timeline.recorder import Timeline

log = logging.getLogger("carmad")

ANSWER_S = 30.0  # of the core
# New objects before the youngest are looked through. By default, 700: then requests are taken for
# objects that live long, and a few hundred of them have all jobs looked through, for 20 ms or more.
GARBAGE = 10_000
EX_CONFIG = 78  # RestartPreventExitStatus of carmad.service
EX_TEMPFAIL = 75  # systemd starts it again


def main(argv: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(argv)
    os.umask(0o022)  # sockets, pipes and cards are for others to reach
    fds = listen_fds()
    listener = socket.socket(fileno=fds[0]) if fds else None
    try:
        _log_to(options.log_file)
        faulthandler.enable()  # so that SIGABRT, which the watchdog sends, says where threads are
        if error := installed.conflict():
            log.warning("%s; %s", error.message, error.hint)
        return EX_TEMPFAIL if run(options, listener) else 0
    except CarmaError as error:
        print(f"carmad: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        if listener:
            turn_away(listener)
        return EX_CONFIG if isinstance(error, Hopeless) else 1


def run(options: argparse.Namespace, listener: socket.socket | None) -> bool:
    """Everything is built before the first event, and closed in the opposite order. Returns whether
    to start again."""
    state_dir = Path(options.state_dir or paths.state_dir()).absolute()
    reloader = Reloader()
    signal.signal(signal.SIGHUP, lambda *_: reloader.ask())
    settings, config = _settings(options, state_dir)
    with _for_a_person():
        source = choose(settings.monitor.source, settings.monitor.period_s)
    with contextlib.ExitStack() as stack:
        store = SqlStore.open(state_dir / "carma.db")
        stack.callback(store.close)
        clock = Clock(store.keep_time(boot_id(), wall_ahead()))
        copies = Copies(_scripts_dir(state_dir, emulated=bool(options.emulated)))
        copies.clear_trials()
        experience = _experience(settings, store, copies)
        scheduler, troubles = _core(settings, experience)
        own_units, grace_s = units.available(), settings.limits.kill_grace_s
        launcher = Launcher(
            state_dir,
            copies,
            systemd=own_units,
            kill_grace_s=grace_s,
            group=settings.host.cgroup,
            cards=_cards(settings),
        )
        inbox = Inbox(clock, _next_id(store, launcher))
        where = options.socket or paths.daemon_socket()
        evidence, externals = Evidence(), Externals(settings.monitor.external_mib)
        monitor = Monitor(source, settings.monitor, inbox, evidence, externals.add)
        mps = _mps(settings, state_dir, own_units, monitor)
        world = DaemonWorld(
            state_dir=state_dir,
            inbox=inbox,
            estimate=_estimate(settings, experience, store),
            whole=store.whole,
            launcher=launcher,
            evidence=evidence,
            mps=mps,
            kill_grace_s=grace_s,
            extra_env=_job_env(settings, where),
            take_s=settings.interactive.take_s,
        )
        to_core = _on_trained(inbox)
        models = Models(state_dir / "models", store, settings.models.retrain_days, to_core)
        timeline = Timeline(scheduler)
        timeline.load(store.timeline(), clock())
        service = Service(
            inbox=inbox,
            store=store,
            settings=settings,
            started_at=time.time(),
            capabilities=monitor.capabilities,
            experience=experience,
            estimate=lambda spec, within_s, server: ask_all(
                patient(settings, within_s), server, spec
            ),
            doctor=lambda scene: doctor.checks(
                settings,
                scene,
                monitor.capabilities(),
                store,
                own_units,
                mps,
                troubles(),
                world.outage,
            ),
            models=models,
            timeline=timeline,
            terminals=world,
            config_path=str(config) if config else None,
            config_toml=configfile.dump(settings),
            troubles=troubles,
            limited_by=launcher.limited_by,
            granted_gib=lambda job: grant_gib(settings.cluster, job),
        )
        server = Server(listener or listen(where), create_app(service))
        past = store.past(clock())
        cap_bytes = settings.retention.journal_mib << 20
        journal = Journal(state_dir / "journal", scheduler, VERSION, cap_bytes, past.submissions)
        scene = _scene(inbox)
        post = Post(store, settings.notify, own_units=own_units, stuck=lambda: stuck(scene()))
        service.events.listeners.append(post.heard)
        runners = Runners(inbox)
        told = (timeline, service, service.counts, world, journal, post, runners)
        followers = (InvalidChoices(), *told)
        engine = Engine(inbox, scheduler, store, world, followers)

        engine.restore(History(past.runs, past.submissions))
        to_core(models.load())
        _take_over(scheduler, launcher, world)
        _end_unreadable(scheduler, inbox)
        runners.watch(scheduler.jobs.rows.values())
        stack.callback(world.close)
        again = Event()
        wall = Wall(clock, _restart(inbox, again) if is_service() else None)
        alive = watchdog()

        def feed() -> None:
            alive()
            wall.look()

        _start(stack, beats.Watcher(feed, monitor.hangs))
        _start(stack, monitor)
        if mps:
            _start(stack, MpsWatch(mps, inbox, evidence))
        flush = _flush(journal, store, externals)
        train, save = models.train_if_due, lambda: timeline.save(store.record_timeline, clock())
        sent = state_dir / "report.sent"
        report = weekly_report(store, scene, post, sent) if settings.notify.report else None
        back = functools.partial(release, inbox)
        chores = Housekeeping(
            store, settings.retention, state_dir, flush, train, report, save, back
        )
        _start(stack, chores)
        stack.callback(models.stop)
        _start(stack, post)
        _start(stack, server)
        if settings.cluster.engine:
            _start(stack, SlurmNode(scene, settings.cluster.node))
        if settings.metrics.listen:
            _start(stack, Keeper(settings.metrics.listen, where, own_units))
        stack.callback(experience.close)  # first: the others wait for the trials under way

        reconfigure = _reconfigure(inbox, service, chores)
        reloader.start(settings, lambda: read_settings(options, state_dir)[0], reconfigure)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: inbox.close())
        gc.freeze()  # this stays for good: looking through it would stop everybody for 40 ms
        gc.set_threshold(GARBAGE)
        notify("READY=1")
        log.info("ready: policy %s, telemetry %s", settings.policy, source.name)
        engine.run()
        inbox.refuse()
        notify("STOPPING=1")
        log.info("stopping; running jobs continue")
    return again.is_set()


def _restart(inbox: Inbox, again: Event) -> Callable[[], None]:
    def restart() -> None:
        again.set()
        inbox.close()

    return restart


def _start(
    stack: contextlib.ExitStack,
    part: beats.Watcher | Monitor | MpsWatch | Housekeeping | Post | Server | Keeper | SlurmNode,
) -> None:
    """Start `part`, and stop it when the stack closes."""
    part.start()
    stack.callback(part.stop)


def _scripts_dir(state_dir: Path, emulated: bool) -> Path:
    """With emulated GPUs, every user's jobs come through `state_dir` anyway; and there may be
    several such daemons."""
    return state_dir / "scripts" if emulated else Path(paths.scripts_dir(str(state_dir)))


def _experience(settings: Settings, store: SqlStore, copies: Copies) -> Experience:
    experience = Experience(settings, driver_version(), attendant.trials_cgroup(), copies)
    for user in store.users():
        ended_well = store.history(user=user, states=[JobState.SUCCEEDED], limit=JOBS_PER_USER)
        experience.remember(reversed(ended_well))
    return experience


def _core(
    settings: Settings, experience: Experience
) -> tuple[Scheduler, Callable[[], list[Trouble]]]:
    """The scheduler with its plugins, and a function that returns what has gone wrong in them."""
    with _for_a_person():
        registry.estimator(settings.estimator, settings, experience.server())  # is it there?
        policy, fallback = registry.policy(settings), registry.fallback(settings)
        recovery, predictor = registry.recovery(settings), registry.predictor(settings)
        scheduler = Scheduler(settings, policy, recovery, predictor, fallback)
    guarded = [each for each in (policy, fallback, recovery, predictor) if each]
    return scheduler, lambda: [each.trouble for each in guarded if each.trouble]


def _estimate(
    settings: Settings, experience: Experience, store: SqlStore
) -> Callable[[JobSpec, bool, Event], Answer]:
    """A function that estimates a waiting job, patiently or not, until nobody waits for the answer
    any more. It never raises."""

    def estimate(spec: JobSpec, patiently: bool, abandoned: Event) -> Answer:
        if spec.interactive and spec.argv[1:] == ("-i",):  # what it took last time tells nothing
            return spec.declared or Refusal("a shell may run anything", settings.estimator)
        try:
            whole = store.whole(spec)
        except CarmaError as error:
            return Refusal(str(error), settings.estimator)
        chosen = patient(settings) if patiently else settings
        return ask(settings.estimator, chosen, experience.server(abandoned=abandoned), whole)

    return estimate


@contextlib.contextmanager
def _for_a_person() -> Iterator[None]:
    """An error in here is in the settings, which only a person can fix."""
    try:
        yield
    except CarmaError as error:
        raise Hopeless(error.message, error.hint) from error


def _next_id(store: SqlStore, launcher: Launcher) -> JobId:
    """The first free id, also if the database is older than a backup or than records of jobs."""
    known, recorded = store.restore().next_id, launcher.jobs_on_disk()
    next_id = max(known, store.last_id_backed_up() + 1, max(recorded, default=0) + 1)
    if next_id > known:
        log.warning(
            "the database has no job from %d on, but there were such jobs: new ids start at %d."
            " Was a backup restored? See carma doctor",
            known,
            next_id,
        )
    return JobId(next_id)


def _take_over(scheduler: Scheduler, launcher: Launcher, world: DaemonWorld) -> None:
    """Take over running attempts from an earlier daemon, and remove records of ended ones. Attempts
    that were about to start or stop are watched once that owed action has been repeated."""
    for ended in launcher.jobs_on_disk() & scheduler.outcomes.keys():
        world.release(ended)
    for job in scheduler.jobs.rows.values():
        if job.state is JobState.RUNNING:
            world.adopt(job)
    world.shepherd.start()


def _end_unreadable(scheduler: Scheduler, inbox: Inbox) -> None:
    """Cancel waiting jobs whose records are damaged. Running ones are watched as usual."""
    for job in scheduler.jobs.rows.values():
        if stands_in(job) and not job.holds_gpus:
            by = "carmad: its record in the database was damaged"
            inbox.post(CancelRequested(inbox.clock(), job.id, by, job.tasks - 1))


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("carmad", description="The CARMA daemon.")
    parser.add_argument("--config", help="the settings file")
    parser.add_argument("--state-dir", help="where the database and the jobs' records live")
    parser.add_argument("--socket", help="where to listen for `carma`")
    parser.add_argument("--emulated", metavar="SPEC", help="emulate GPUs, e.g. 3xA100-40GB")
    parser.add_argument("--log-file", help="append the log here (default: standard error)")
    return parser


def _log_to(path: str | None) -> None:
    try:
        handlers = [logging.FileHandler(path) if path else logging.StreamHandler()]
    except OSError as error:
        raise CarmaError(f"cannot write {path}: {error.strerror}", "choose --log-file") from error
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, handlers=handlers)
    logging.getLogger("apscheduler").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # a line for whatever garbage it is sent


def _settings(options: argparse.Namespace, state_dir: Path) -> tuple[Settings, Path | None]:
    """The settings in effect, and the file that they came from."""
    with _for_a_person():
        settings, file = read_settings(options, state_dir)
    if options.emulated:
        emulated.create(state_dir / EMULATED, options.emulated)
        if os.geteuid() == 0:
            state_dir.chmod(0o711)  # every user's jobs come through to the cards
    return settings, file


def _cards(settings: Settings) -> str:
    """The directory of the emulated GPUs, or "" for real ones."""
    kind, _, directory = settings.monitor.source.partition(":")
    return directory if kind == "emulated" else ""


def _job_env(settings: Settings, where: str) -> dict[str, str]:
    """Variables for the environment of every job."""
    env = {"CARMA_SOCKET": os.path.abspath(where)}  # noqa: PTH100 - a link stays one
    if cards := _cards(settings):
        env["CARMA_EMULATED_DIR"] = cards
    return env


def _mps(settings: Settings, state_dir: Path, own_units: bool, monitor: Monitor) -> Mps | None:
    shared = settings.collocation
    if not shared.mps:
        return None

    def whole() -> list[GpuId]:
        # CUDA ignores all devices in a list that come after one that it does not find.
        return [gpu.id for gpu in monitor.working() if not gpu.is_mig]

    return Mps(
        Path(paths.mps_dir(str(state_dir))),
        multiuser=shared.mps_multiuser,
        systemd=own_units,
        node=whole if shared.mps_scope == "node" else None,
    )


class InvalidChoices(Follower):
    """Logs a policy's invalid choices; its guard logs what it raises."""

    def on_commit(self, step: Step) -> None:
        for decision in step.decisions:
            for reason in decision.placement.reasons:
                if reason.code == "policy_failed" and not step.failures:
                    id, policy = decision.placement.job, decision.policy
                    log.error("the policy %s fails job %d: %s", policy, id, reason.detail)


def _on_trained(inbox: Inbox) -> Callable[[Mapping[str, Model]], None]:
    """A function that hands newly trained models to the core."""

    def deliver(models: Mapping[str, Model]) -> None:
        if models:
            inbox.post(Trained(inbox.clock(), tuple(models.items())))

    return deliver


def _scene(inbox: Inbox) -> Callable[[], Scene]:
    return lambda: inbox.ask(lambda core: core.snapshot(inbox.clock())).result(ANSWER_S)


def _reconfigure(
    inbox: Inbox, service: Service, chores: Housekeeping
) -> Callable[[Settings], None]:
    def reconfigure(new: Settings) -> None:
        inbox.post(Reconfigured(inbox.clock(), new))
        service.settings, service.config_toml = new, configfile.dump(new)
        chores.retention = new.retention

    return reconfigure


def _flush(journal: Journal, store: SqlStore, externals: Externals) -> Callable[[], None]:
    """A function that writes both buffers to disk, each even if the other fails."""

    def flush() -> None:
        try:
            journal.flush()
        finally:
            store.record_externals(externals.take())

    return flush


if __name__ == "__main__":
    sys.exit(main())
