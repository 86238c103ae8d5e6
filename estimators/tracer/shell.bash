# Read by each bash that a trial of a shell script starts (BASH_ENV). The script's own language is run
# as it is, and so are programs that only print. Any other program becomes a function, which reports
# its words to `shell.command`, prints \002 (`shell.UNKNOWN`) and succeeds. What would write to a file
# is reported as well, and left out: with `extdebug`, a DEBUG trap that fails leaves a command out.
# shellcheck shell=bash

__carma_value='([^][:space:]"'\''`$\\()]|"([^"\\]|\\.)*"|'\''[^'\'']*'\''|`[^`]*`|[$<>]\([^()]*(\([^()]*(\([^()]*\)[^()]*)*\)[^()]*)*\)|\$\{[^}]*\}|[]$]|\\.)'
__carma_assignments="^([A-Za-z_][A-Za-z0-9_]*(\[[^]]*\])?\+?=(\([^()]*\)|$__carma_value*)([[:space:]]+|\$))*"
__carma_redirection="([[:space:]]|^)([0-9]*|\{[A-Za-z_0-9]+\})(&?>>?\|?|<|<<<|<>|[<>]&) ?$__carma_value+[[:space:]]*\$"  # bash prints them last
__carma_heredoc=$'[0-9]*<<-? ?[\'"\\\\]?[A-Za-z_0-9]+[\'"]?([^\n]*)\n'
__carma_prints='^(\[|[ef]?grep|awk|basename|cat|column|comm|cut|date|dirname|du|expr|file|find|getconf|getopt|head|hostname|id|jq|lmod|ls|modulecmd.*|nproc|paste|printenv|printf|readlink|realpath|rev|sed|seq|shuf|sort|stat|tac|test|tr|uname|uniq|wc|which|whoami)$'

__carma_own=' command kill nvidia-smi sleep tail trap xargs ' # functions, and those made below
nvidia-smi() {
  for ((__carma_at = 0; __carma_at < __carma_gpus; __carma_at++)); do
    case "$* " in *=index\ *) echo $__carma_at ;; *=count\ *) echo "$__carma_gpus" ;; *--query*) echo $'\2' ;; *) echo "GPU $__carma_at" ;; esac
  done
}
tail() { [[ ${1-} == -[fF]* ]] || builtin command tail "$@"; }
xargs() { if [[ $* =~ ^(-[0rtx]|-[dnL]\ ?[^\ ]+|\ )*$ ]]; then builtin command xargs "$@"; else __carma_report xargs "$@"; fi; }
kill() { :; }
sleep() { :; }
trap() { :; } # while one runs, BASH_COMMAND is still the command before it
command() {
  if [[ ${1-} == -*[vV]* ]]; then builtin command "$@"; return; fi
  if [[ ${1-} == -* ]]; then shift; fi
  if [[ ${1-} =~ $__carma_prints || $(type -t -- "${1-}") == builtin ]]; then builtin command "$@"; else __carma_report "$@"; fi
}

# Whether a command, as bash prints it, is to be left out, and the words in __carma_text reported.
__carma_writes() {
  local -
  set +aeux
  local text=$1 writes='' name kind
  __carma_words=() __carma_last=''
  [[ $text =~ $__carma_heredoc ]] && text=${text%%"${BASH_REMATCH[0]}"*}${BASH_REMATCH[1]}
  while [[ $text =~ $__carma_redirection ]]; do
    [[ ${BASH_REMATCH[0]} == *'>'* && ${BASH_REMATCH[0]} != *'>&'[0-9] && ${BASH_REMATCH[0]} != *[\ \"\>]/dev/@(null|std|tty)* ]] && writes=1
    text=${text%"${BASH_REMATCH[0]}"}
  done
  __carma_text=$text
  [[ $text =~ $__carma_assignments ]]
  text=${text:${#BASH_REMATCH[0]}}
  name=${text%%[[:space:]]*}
  case $name in
    '' | '[' | '(('* | '[['* | \"\$__carma_* | *'$('* | *\`*) return 1 ;;
    *[\$\\\'\"~*?[]*) eval "__carma_words=($name)"; name=${__carma_words[0]-} ;;
  esac
  kind=$(type -t -- "$name")
  [[ ($kind == keyword && $name != time) || $name == __carma_* ]] && return 1
  [[ $name == exec && $text =~ [^[:space:]][[:space:]]+[^[:space:]] ]] && { __carma_last=1; return 0; }
  [[ $writes ]] && { [[ $kind != function || $__carma_own == *" $name "* ]]; return; }
  [[ $kind == function || $kind == builtin ]] && return 1
  [[ ${name##*/} =~ $__carma_prints && $text != *\ -exec* ]] && return 1
  __carma_own+="$name "
  eval "function $name { __carma_report ${name@Q} \"\$@\"; }"
  return 1
}

__carma_report() {
  local -
  set +aeux
  local line=''
  while [[ ${1-} =~ ^[A-Za-z_][A-Za-z_0-9]*= ]]; do local -x "$1"; shift; done
  [[ ${1-} != @(exec|command) ]] || shift
  case ${1-} in
    *conda | *mamba) [[ ${2-} == shell.* ]] && { builtin command "$@"; return; } ;;
    bash | sh | */bash | */sh) __carma_bash "${@:2}"; return 0 ;;
    */shims/*) ;; # pyenv's are scripts
    */*)
      read -r line 2>/dev/null <"$1"
      [[ $line == '#!'*[/\ ]?(ba)sh?(\ -*) ]] && { __carma_bash "$@"; return 0; }
      ;;
  esac
  BASH_ENV='' "$__carma_python" -I -S -c "$__carma_code" $$ "$@"
  (builtin trap '' PIPE; printf '\002' 2>/dev/null) || : # the next in a pipe may be gone
}

__carma_self=${BASH_SOURCE[0]}
__carma_bash() { (unset POSIXLY_CORRECT; export BASH_ENV=$__carma_self; builtin command bash "$@"); }
set -o functrace
# A loop that sleeps waits for what a program does: it goes on as if that were done.
# extdebug is not set at once, as bash would look for its debugger
builtin trap '[[ $BASH_COMMAND != sleep* ]] || ((++__carma_slept < 100)) || break 2>/dev/null; ! { shopt -s extdebug; __carma_writes "$BASH_COMMAND" && { eval "__carma_words=($__carma_text)"; __carma_report "${__carma_words[@]}"; [[ ! $__carma_last ]] || exit 0; }; }' DEBUG
