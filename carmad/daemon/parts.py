"""carmad's parts: how they are built, in the order in which they need each other, and started."""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

from carmad import beats, paths, registry, units
from carmad.api.app import create_app
from carmad.api.checks import CheckOut
from carmad.api.service import Service
from carmad.api.why import explain
from carmad.attempt import environment
from carmad.attempt.callers import allocation_of
from carmad.attempt.evidence import Evidence
from carmad.attempt.launcher import Copies, Launcher
from carmad.config import Settings
from carmad.core.jobs.attempt import GpuId, JobId
from carmad.core.jobs.findings import Refusal
from carmad.core.jobs.history import History
from carmad.core.jobs.spec import JobSpec
from carmad.core.jobs.states import JobState
from carmad.core.messages import CancelRequested, Noticed, Reconfigured, Step, Trained
from carmad.core.scene import Scene
from carmad.core.scheduler import Scheduler
from carmad.daemon import doctor
from carmad.daemon.housekeeping import Housekeeping, release
from carmad.daemon.monitor import MPS_EVERY_S, Externals, Monitor, MpsWatch
from carmad.daemon.runners import Runners
from carmad.daemon.service import Reloader, find_waiting, is_service, listen, notify, read_settings
from carmad.daemon.world import DaemonWorld
from carmad.edge import BackgroundService, Chore, Follower, Host, SubmissionCheck
from carmad.engine.clock import Clock, Wall, boot_id, wall_ahead
from carmad.engine.engine import Engine
from carmad.engine.inbox import Inbox
from carmad.errors import CarmaError, Hopeless
from carmad.estimates import attendant
from carmad.estimates.asking import Answer, ask_all, decide, measure, patient
from carmad.estimates.experience import JOBS_PER_USER, Experience, driver_version
from carmad.gpu.checkpoint import Checkpoints
from carmad.gpu.limits import EmulatedLimiter, NvmlLimiter
from carmad.gpu.mps import Mps
from carmad.gpu.source import TelemetrySource
from carmad.guards import GuardedPolicy, GuardedPredictor, GuardedRecovery, Trouble
from carmad.http.server import Server
from carmad.learning.models import Model
from carmad.learning.trained import Models
from carmad.metrics.keeper import Keeper
from carmad.notify.letters import find_stuck
from carmad.notify.post import Post
from carmad.store.damage import stands_in
from carmad.store.journal import Journal
from carmad.store.sql import SqlStore
from carmad.timeline.recorder import Timeline

log = logging.getLogger("carmad")

ANSWER_S = 30.0  # of the core
PLUGGED_WITHIN_S = 10.0  # a service starts or stops
SAVE_S = 30  # what of the timeline a daemon that is killed may lose


class Daemon:
    """Everything is built before the first event; then come `restore`, `start` and `engine.run`.
    `stack` closes what was built and stops what was started, also if one of these raises."""

    def __init__(
        self,
        options: argparse.Namespace,
        state_dir: Path,
        settings: Settings,
        config: Path | None,
        source: TelemetrySource,
        listener: socket.socket | None,
        stack: contextlib.ExitStack,
        reloader: Reloader,
    ) -> None:
        """`config`: the file that the settings came from. `listener`: systemd's socket, if it has
        opened one. Raises CarmaError."""
        self._state_dir, self._settings, self._config = state_dir, settings, config
        self._in_force = settings
        self._options = options
        self._where = options.socket or paths.daemon_socket()
        self._stack, self._reloader = stack, reloader
        self.again = Event()  # set: carmad is to start again
        self._build_core(emulated=bool(options.emulated))
        self._build_world(source)
        self._build_service()
        self._server = Server(
            listener or listen(self._where), create_app(self._service, registry.routers())
        )
        self._build_engine()

    def _build_core(self, emulated: bool) -> None:
        """What decides, and what it remembers."""
        self._store = SqlStore.open(self._state_dir / "carma.db")
        self._stack.callback(self._store.close)
        self._clock = Clock(self._store.keep_time(boot_id(), wall_ahead()))
        self._copies = Copies(_scripts_dir(self._state_dir, emulated))
        self._copies.clear_trials()
        self._experience = _experience(self._settings, self._store, self._copies)
        self._scheduler, self._troubles = _core(self._settings, self._experience)

    def _build_world(self, source: TelemetrySource) -> None:
        """What reads the GPUs, and what acts on jobs' processes."""
        settings = self._settings
        self._own_units, grace_s = units.available(), settings.limits.kill_grace_s
        self._launcher = Launcher(
            self._state_dir,
            self._copies,
            systemd=self._own_units,
            kill_grace_s=grace_s,
            group=settings.host.cgroup,
            cards=_cards(settings),
            stays=lambda pid: allocation_of(self._checks, pid) is not None,
        )
        self.inbox = Inbox(self._clock, _next_id(self._store, self._launcher))
        self._evidence = Evidence()
        self._externals = Externals(settings.monitor.external_mib)
        self._monitor = Monitor(
            source, settings.monitor, self.inbox, self._evidence, self._externals.add
        )
        self._mps = _mps(settings, self._state_dir, self._own_units, self._monitor)
        self._world = DaemonWorld(
            state_dir=self._state_dir,
            inbox=self.inbox,
            estimate=self._estimate,
            measured=self._measured,
            whole=self._store.whole,
            launcher=self._launcher,
            evidence=self._evidence,
            mps=self._mps,
            checkpoints=Checkpoints(_cards(settings)),
            limiter=EmulatedLimiter(cards) if (cards := _cards(settings)) else NvmlLimiter(),
            suspending=lambda: self._scheduler.settings.suspend,
            kill_grace_s=grace_s,
            extra_env=_job_env(settings, self._where),
            take_s=settings.interactive.take_s,
            cuda_indices=self._cuda_indices,
        )

    def _cuda_indices(self) -> dict[GpuId, int]:
        wants = self._scheduler.settings.collocation.visible_devices == "index"
        return self._monitor.cuda_indices() if wants else {}

    def _build_service(self) -> None:
        """What requests are answered from."""
        settings, store = self._settings, self._store
        retrain_days = settings.models.retrain_days
        self._models = Models(self._state_dir / "models", store, retrain_days, self._deliver)
        self._build_plugged()
        self._service = Service(
            inbox=self.inbox,
            store=store,
            settings=settings,
            started_at=time.time(),
            capabilities=self._monitor.capabilities,
            experience=self._experience,
            estimate=lambda spec, within_s, server: ask_all(
                patient(settings, within_s), server, spec
            ),
            doctor=self._examine,
            models=self._models,
            timeline=self._timeline,
            terminals=self._world,
            set_policy=self._set_policy,
            waiting_settings=lambda: find_waiting(self._service.settings, self.read_settings()),
            send_test=self._post.send_test,
            config_path=str(self._config) if self._config else None,
            troubles=self._troubles,
            limited_by=self._launcher.limited_by,
            checks=self._checks,
        )

    def _build_plugged(self) -> None:
        """What runs beside the core or follows it: CARMA's own, and what packages add."""
        self._added: list[Chore] = []
        host = Host(
            settings=lambda: self._in_force,
            state_dir=self._state_dir,
            socket=self._where,
            has_units=self._own_units,
            records=self._store,
            clock=self._clock,
            scene=self._scene,
            explain=lambda job: explain(job, self._scene()),
            add_chore=self._added.append,
        )
        self._checks = _checks(host)
        self._timeline = Timeline(self._state_dir / "timeline.db")
        self._post = Post(
            self._store,
            self._settings.notify,
            own_units=self._own_units,
            stuck=lambda: find_stuck(self._scene()),
            explain=host.explain,
            gpus=lambda: self._scene().gpus,
        )
        followers = registry.followers(host)  # first: theirs are the first chores when it stops
        own: dict[str, BackgroundService] = {"notices": self._post}
        if self._settings.metrics.listen:
            own["metrics"] = Keeper(host)
        self._services = registry.services(host) | own
        plugged = (self._timeline, *followers.values(), *self._services.values())
        self._plugged = [each for each in plugged if isinstance(each, Follower)]

    def _build_engine(self) -> None:
        """What drives the core, and those that follow its steps."""
        settings, store, scheduler = self._settings, self._store, self._scheduler
        self._past = store.past(self._clock())
        cap_bytes = settings.retention.journal_mib << 20
        self._journal = Journal(self._state_dir / "journal", scheduler, cap_bytes)
        self._runners = Runners(self.inbox)
        self._service.events.listeners += self._plugged
        followers = (
            *(InvalidChoices(), self._service, self._service.counts, self._world),
            *(self._journal, self._runners, *self._plugged),
        )
        self.engine = Engine(self.inbox, scheduler, store, self._world, followers)

    def restore(self) -> None:
        """Go on where an earlier daemon ended."""
        self.engine.restore(History(self._past.runs, self._past.submissions))
        self._deliver(self._models.load())
        take_over(self._scheduler, self._launcher, self._world)
        self._end_unreadable()
        self._note_lacking_secrets()
        self._runners.watch(self._scheduler.jobs.rows.values())
        self._stack.callback(self._world.close)

    def _note_lacking_secrets(self) -> None:
        """Tell owners of jobs in a backup that was put back, which has none."""
        names = functools.cache(lambda its: dict(self._store.secrets(its)).keys())
        for job in self._scheduler.jobs.rows.values():
            its = job.spec.secrets
            if its and (lacking := [name for name in its.names if name not in names(its)]):
                note = environment.lacking_note(lacking)
                self.inbox.post(Noticed(self._clock(), job.id, note))

    def start(self) -> None:
        """Start the threads, and the processes that they keep."""
        self._wall = Wall(self._clock, self._restart if is_service() else None)
        self._start(beats.Watcher(self._feed_watchdog, self._monitor.hangs))
        self._start(self._monitor)
        self._chores = self._housekeeping()
        self._start(self._chores)
        self._stack.callback(self._models.stop)
        self._start(self._server)
        for name, service in self._services.items():
            self._start_service(name, service)
        # First: the others wait for the trials under way.
        self._stack.callback(self._experience.close)

    def read_settings(self) -> Settings:
        """Those that a start would find. Raises CarmaError, also if a plugin is not there."""
        found, self._config = read_settings(self._options, self._state_dir)
        self._service.config_path = str(self._config) if self._config else None
        registry.bare_policy(found)
        registry.bare_predictor(found)
        return found

    def reconfigure(self, new: Settings) -> None:
        """From now on, these settings are in effect. For any thread."""
        self.inbox.post(Reconfigured(self._clock(), new))
        self._in_force = self._service.settings = new
        self._chores.retention = new.retention

    def _set_policy(self, name: str, by: str) -> None:
        """Write it to the settings file, and let it decide from now on. Raises CarmaError."""
        from carmad.configwriting import write_settings  # now: it takes memory

        if variable := os.environ.get("CARMA_POLICY"):
            hint = "Change it there, and restart carmad."
            raise CarmaError(f"CARMA_POLICY={variable} is set for carmad, and overrides it", hint)
        registry.bare_policy(replace(self._service.settings, policy=name))
        file = self._config or Path(paths.config_path())
        write_settings(file, {"policy": name})
        self._config, self._service.config_path = file, str(file)
        log.info("%s sets the policy: %s", by, name)
        self._reloader.ask().result(ANSWER_S)

    def _start_service(self, name: str, service: BackgroundService) -> None:
        with beats.beating(f"service-{name}", PLUGGED_WITHIN_S):  # if it hangs, the log tells where
            beats.at("its start")
            try:
                service.start()
            except (Exception, SystemExit):  # foreign code
                log.exception("the service %s did not start", name)
                return
        self._stack.callback(_stop, name, service)

    def _start(self, part: BackgroundService) -> None:
        """Start `part`, and stop it when the stack closes."""
        part.start()
        self._stack.callback(part.stop)

    def _feed_watchdog(self) -> None:
        """About once a second, while all is well."""
        notify("WATCHDOG=1")
        self._wall.look()

    def _restart(self) -> None:
        self.again.set()
        self.inbox.close()

    def _housekeeping(self) -> Housekeeping:
        held = functools.partial(release, self.inbox)
        chores = [
            Chore("release", held, "interval", {"minutes": 1}),
            Chore("train", self._models.train_if_due, "interval", {"hours": 1}),
            Chore("save", self._save_timeline, "interval", {"seconds": SAVE_S}, at_stop=True),
            *self._added,
        ]
        if self._mps:
            look = MpsWatch(self._mps, self.inbox, self._evidence).look
            chores.append(Chore("mps", look, "interval", {"seconds": MPS_EVERY_S}))
        return Housekeeping(
            self._store,
            self._settings.retention,
            self._state_dir,
            functools.partial(flush, self._journal, self._store, self._externals),
            chores,
        )

    def _save_timeline(self) -> None:
        self._timeline.save(self._clock())

    def _scene(self) -> Scene:
        return self.inbox.ask(lambda core: core.snapshot(self.inbox.clock())).result(ANSWER_S)

    def _examine(self, scene: Scene) -> Sequence[CheckOut]:
        return doctor.checks(
            self._service.settings,
            scene,
            self._monitor.capabilities(),
            self._store,
            self._own_units,
            self._mps,
            self._models,
            self._troubles(),
            self._world.outage,
        )

    def _estimate(self, spec: JobSpec, patiently: bool, abandoned: Event) -> Answer:
        """Estimate a waiting job, patiently or not, until nobody waits for the answer any more.
        Never raises."""
        name = self._settings.estimator
        if spec.interactive and spec.argv[1:] == ("-i",):  # what it took last time tells nothing
            return spec.declared or Refusal("a shell may run anything", name)
        try:
            whole = self._store.whole(spec)
        except CarmaError as error:
            return Refusal(str(error), name)
        chosen = patient(self._settings) if patiently else self._settings
        return decide(chosen, self._experience.server(abandoned=abandoned), whole)

    def _measured(self, spec: JobSpec) -> Answer:
        """What earlier runs of a job used, if the estimator may use that. Never raises."""
        try:
            return measure(self._settings, self._experience.server(), self._store.whole(spec))
        except CarmaError as error:
            return Refusal(str(error), self._settings.estimator)

    def _deliver(self, models: Mapping[str, Model]) -> None:
        """Hand newly trained models to the core."""
        if models:
            self.inbox.post(Trained(self.inbox.clock(), tuple(models.items())))

    def _end_unreadable(self) -> None:
        """Cancel waiting jobs whose records are damaged. Running ones are watched as usual."""
        for job in self._scheduler.jobs.rows.values():
            if stands_in(job) and not job.holds_gpus:
                by = "carmad: its record in the database was damaged"
                self.inbox.post(CancelRequested(self._clock(), job.id, by, job.tasks - 1))


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
    with for_a_person():
        registry.estimator(settings.estimator, settings, experience.server())  # is it there?
        policy = _policy(settings)
        deputy = settings.policy_fallback
        fallback = _policy(replace(settings, policy=deputy, policy_fallback="")) if deputy else None
        recovery = GuardedRecovery(registry.bare_recovery(settings))
        predictor = _predictor(settings)
    others = [each for each in (fallback, recovery) if each]
    renewed: tuple[GuardedPolicy, GuardedPredictor] = policy, predictor

    def renew(new: Settings) -> tuple[GuardedPolicy, GuardedPredictor]:
        nonlocal renewed
        for old in renewed:
            old.close()
        renewed = _policy(new), _predictor(new)
        return renewed

    scheduler = Scheduler(settings, policy, recovery, predictor, fallback, renew)
    return scheduler, lambda: [each.trouble for each in (*renewed, *others) if each.trouble]


def _predictor(settings: Settings) -> GuardedPredictor:
    return GuardedPredictor(registry.bare_predictor(settings))


def _policy(settings: Settings) -> GuardedPolicy:
    return GuardedPolicy(registry.bare_policy(settings), deputy=settings.policy_fallback)


def _checks(host: Host) -> list[SubmissionCheck]:
    with for_a_person():
        return registry.checks(host)


@contextlib.contextmanager
def for_a_person() -> Iterator[None]:
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


def take_over(scheduler: Scheduler, launcher: Launcher, world: DaemonWorld) -> None:
    """Take over running attempts from an earlier daemon, and remove records of ended ones. Attempts
    for which an action is due are watched once that has been repeated."""
    for ended in launcher.jobs_on_disk() & scheduler.outcomes.keys():
        if not launcher.runs(ended):  # it was requeued after the backup that was put back
            world.release(ended)
    there = (JobState.RUNNING, JobState.SUSPENDED)
    jobs = [job for job in scheduler.jobs.rows.values() if job.state in there]
    for job in jobs:
        world.adopt(job)
    world.compare(jobs)
    world.shepherd.start()


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


def flush(journal: Journal, store: SqlStore, externals: Externals) -> None:
    """Write both buffers to disk, each even if the other fails."""
    try:
        journal.flush()
    finally:
        store.record_externals(externals.take())


def _stop(name: str, service: BackgroundService) -> None:
    """Nobody waits for one that hangs: what is still in memory has to get to disk."""

    def stop() -> None:
        try:
            service.stop()
        except (Exception, SystemExit):  # foreign code
            log.exception("the service %s did not stop", name)

    thread = Thread(target=stop, name=f"stop-{name}", daemon=True)
    thread.start()
    thread.join(PLUGGED_WITHIN_S)
    if thread.is_alive():
        where = beats.stack(thread.ident or 0)
        log.error("the service %s has not stopped in %g s: %s", name, PLUGGED_WITHIN_S, where)


class InvalidChoices(Follower):
    """Logs a policy's invalid choices; its guard logs what it raises."""

    def on_commit(self, step: Step) -> None:
        for decision in step.decisions:
            for reason in decision.placement.reasons:
                if reason.code == "policy_failed" and not step.failures:
                    id, policy = decision.placement.job, decision.policy
                    log.error("the policy %s fails job %d: %s", policy, id, reason.detail)
