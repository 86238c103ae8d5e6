"""The policies and estimators of stage `trace`, with the settings of daemon and simulator."""

from __future__ import annotations

from dataclasses import dataclass

from carmad.config import Collocation, Estimation, Limits, Monitor, Preconditions, Settings

# The paper's 4.2 to 4.4: 2 GB to spare beyond an estimate; 5 GB free without; RR without either.
KNOWN = Preconditions(min_free_mib=0, margin_mib=2048)
NONE = Preconditions(min_free_mib=0, utilization=False)


@dataclass(frozen=True, slots=True)
class Run:
    policy: str
    estimator: str = ""  # "": jobs run without an estimate
    preconditions: Preconditions = KNOWN

    @property
    def name(self) -> str:
        return f"{self.policy}, {self.estimator or 'no estimate'}"

    @property
    def minutes(self) -> float:
        """On a GPU, by estimate: jobs in turn, or scripts looked at, take longest."""
        return 2.0 if self.policy == "exclusive" or self.looks else 1.2

    @property
    def looks(self) -> bool:
        """Whether it looks at scripts, which takes as long as jobs do here."""
        return self.estimator not in ("", "declared", "history")


RUNS = (
    Run("exclusive"),
    Run("magm", "declared"),
    Run("rr", "", NONE),
    Run("magm", "auto"),
    Run("magm", "trace"),
    Run("magm", "horus"),
    Run("magm", "faketensor"),
    Run("magm", "gpumemnet"),
    Run("magm", "history"),
)


def settings(
    run: Run,
    window_s: float,
    mps: bool,
    external_mib: int = Monitor().external_mib,
    source: str = "auto",
) -> Settings:
    """`external_mib`: memory that processes of no job may hold of a GPU that counts as idle."""
    return Settings(
        policy=run.policy,
        estimator=run.estimator or "declared",
        monitor=Monitor(
            source=source,
            period_s=window_s / 5,
            window_s=window_s,
            first_kernel_timeout_s=30.0,
            external_mib=external_mib,
        ),
        estimation=Estimation(within_s=60.0),  # what they say is compared, not how soon
        limits=Limits(kill_grace_s=5.0),
        preconditions=run.preconditions,
        collocation=Collocation(mps=mps),
    )
