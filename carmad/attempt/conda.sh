fail() { printf '%s\n' "$@" >&9; exit 127; }
conda_env=$1; shift
hook=$("${CONDA_EXE:-conda}" shell.posix hook) || fail "conda was not found or did not start" \
  "submit from a shell in which conda works, or add --export CONDA_EXE=/path/to/bin/conda"
eval "$hook"
conda activate "$conda_env" || fail "cannot activate the conda environment $conda_env" \
  "conda env list shows those you have; conda's own message is in the job's log"
type -P -- "$1" >/dev/null || fail "cannot run $1: command not found" \
  "it is neither in the conda environment $conda_env nor elsewhere on PATH"
unset -f fail; unset hook conda_env
exec 9>&-
exec -- "$@"
