"""The verbs by section, with the first line of each one's help: `carma -h` needs nothing else."""

from __future__ import annotations

SUMMARIES: dict[str, dict[str, str]] = {
    "Jobs": {
        "submit": "Put a command or a job script in the queue.",
        "run": "Wait for GPUs, then run a command in this terminal, as a job.",
        "shell": "Wait for GPUs, then start a shell here, as a job.",
        "attach": "Start a shell in the environment of a running job, on its GPUs.",
        "exec": "Run a command in the environment of a running job, on its GPUs.",
        "adopt": "Make a job of a process of yours that already runs on a GPU.",
        "queue": "List running and waiting jobs.",
        "show": "Show everything about one of your jobs.",
        "why": "Explain why a job waits, or what became of it, with numbers.",
        "logs": "Print the output of all attempts of a job; -f follows it.",
        "wait": "Wait for jobs to end. Exits with the exit code of the first that failed, or 0.",
        "cancel": "Cancel jobs. Running ones get SIGTERM, then SIGKILL.",
        "hold": "Keep waiting jobs from starting.",
        "release": "Release held jobs.",
        "suspend": "Take running jobs off their GPUs until they are resumed; nothing is lost.",
        "resume": "Let suspended jobs go on, as soon as there are GPUs for them.",
        "move": "Move a running job to other GPUs of the same kind; nothing is lost.",
        "requeue": "Run ended jobs again, under their old ids.",
        "update": "Change options of waiting jobs; of running ones, --time and --requeue.",
        "notify": "Check where messages about your jobs go (--notify), and send one as a test.",
        "book": "Book GPUs for your own jobs, or list what is booked and reserved.",
        "cron": "Say what to use instead: the system's cron; print the entries you had, for that.",
        "report-step": "Report how long a training step of a running job takes, and its parts.",
        "report-metric": (
            "Report metrics of a running job, such as its accuracy, for `carma results`."
        ),
        "results": "Show the parameters of a sweep's tasks, and the metrics that they reported.",
        "estimate": "Predict how much GPU memory a command needs. It runs on no GPU.",
    },
    "Monitoring": {
        "status": "Show the GPUs, the jobs on them, and the queue.",
        "top": "Watch the GPUs, the jobs on them, and the queue, live.",
        "watch": (
            "Print what happens, as it happens: jobs that start, run, end, are retried; GPUs that"
            " are lost or drained."
        ),
        "web": "Serve a page of the server: its GPUs, the queue, and your jobs, live.",
        "gpus": "Show each GPU's collocation risk, and the limits that apply to it.",
        "history": "List ended jobs, newest first.",
        "stats": "Add up jobs, GPU hours, energy and waiting, by user or by month.",
        "report": "Report what the last whole week or month was used for, as one page of Markdown.",
        "share": (
            "Show each user's recent use of the server. Users who have used far less go first."
        ),
        "estimators": "Compare each memory estimator with what jobs were measured to use.",
        "models": "List the models that policies and predictors use, and their accuracy.",
    },
    "Administration": {
        "drain": (
            "Start no more jobs on these GPUs; running jobs continue, or move. For administrators."
        ),
        "undrain": "Start jobs on drained GPUs again. For administrators.",
        "limit": (
            "List limits, or set one: in force at once, and kept. Setting is for administrators."
        ),
        "reserve": "Reserve GPUs (administrators), or list the reservations.",
        "doctor": (
            "Check this machine and, if one is running, the daemon. Exits with 1 if a check fails."
        ),
        "extras": "List CARMA's optional parts, or install some where CARMA runs.",
        "daemon": "Start, stop and install carmad.",
        "config": "Show the daemon's settings, or check a settings file.",
        "slurm-commands": "Put sbatch, squeue and others on PATH, done by CARMA, or remove them.",
    },
    "More": {
        "simulate": "Simulate a trace of jobs under one or more policies, and compare the results.",
        "demo": (
            "Run the same jobs on emulated GPUs twice at once, one job per GPU and shared by CARMA."
        ),
        "mcp": (
            "Let an agent look at the queue, its GPUs and your jobs, by the Model Context Protocol."
        ),
        "client-wheel": "Make a wheel of the Python client for other environments; print its path.",
        "completion": 'Print a completion script: eval "$(carma completion bash)" in ~/.bashrc.',
        "gpumemnet": "Train the memory estimator gpumemnet.",
    },
}

# Of each group of verbs: the lines of those in it.
BELOW: dict[str, dict[str, str]] = {
    "daemon": {
        "start": "Start a daemon for your own jobs, in the background.",
        "run": "Run the daemon in the foreground.",
        "stop": "Stop the daemon. Running jobs continue; the next daemon takes them over.",
        "status": "Show whether the daemon is running, and where.",
        "install": "Install the systemd units of carmad. For root.",
        "replay": "Replay a daemon's journal, and check that every decision comes out the same.",
    },
    "slurm-commands": {
        "install": "Put Slurm's commands on PATH, as links to carma.",
        "remove": "Remove these links.",
    },
    "config": {
        "show": "Print the settings in effect.",
        "check": (
            "Check a settings file, together with the CARMA_… variables set here. Starts nothing."
        ),
        "set": "Change a setting, in the settings file and at once. For administrators.",
    },
    "gpumemnet": {
        "generate": (
            "Generate random networks of a family, labelled with the GPU memory that training"
            " needs."
        ),
        "train": "Train the classifiers of each family, and print their accuracy.",
        "evaluate": "Print the accuracy of the classifiers next to Table 3 of the CARMA paper.",
    },
}

# What most people need: all that `carma` alone lists.
FIRST = ("submit", "run", "queue", "why", "logs", "cancel", "top", "estimate")


def summary(name: str) -> str:
    """Of a verb, such as `queue` or `daemon start`, or of a group, such as `daemon`."""
    group, _, below = name.partition(" ")
    if below:
        return BELOW[group][below]
    return next(each[name] for each in SUMMARIES.values() if name in each)
