# Read by each bash that a trial of a shell script starts (BASH_ENV). The script's own language is run
# as it is, and so are programs that only print. Any other program becomes a function, which reports
# its words to `shell.command`, prints \002 (`shell.UNKNOWN`) and succeeds. What would write to a file
# is reported as well, and left out: with `extdebug`, a DEBUG trap that fails leaves a command out.
# shellcheck shell=bash

__carma_value='([^][:space:]"'\''`$\\()]|"([^"\\]|\\.)*"|'\''[^'\'']*'\''|`[^`]*`|[$<>]\([^()]*(\([^()]*(\([^()]*\)[^()]*)*\)[^()]*)*\)|\$\{[^}]*\}|[]$]|\\.)'
__carma_assignments="^([A-Za-z_][A-Za-z0-9_]*(\[[^]]*\])?\+?=(\([^()]*\)|$__carma_value*)([[:space:]]+|\$))*"
__carma_redirection="([[:space:]]|^)[0-9]*(&?>>?\|?|<|<<<|<>|[<>]&) ?$__carma_value+[[:space:]]*\$"  # bash prints them last
__carma_heredoc=$'[0-9]*<<-? ?[\'"\\\\]?[A-Za-z_0-9]+[\'"]?([^\n]*)\n'
__carma_prints='^(\[|[ef]?grep|awk|basename|cat|column|comm|cut|date|dirname|du|expr|file|find|getconf|getopt|head|hostname|id|jq|lmod|ls|modulecmd.*|nproc|paste|printenv|printf|readlink|realpath|rev|sed|seq|shuf|sort|stat|tac|test|tr|uname|uniq|wc|which|whoami)$'

nvidia-smi() { for ((__carma_at = 0; __carma_at < __carma_gpus; __carma_at++)); do echo "GPU $__carma_at"; done; }
tail() { [[ ${1-} == -[fF]* ]] || builtin command tail "$@"; }
kill() { :; }
exec() { if (($#)); then __carma_report "$@"; exit 0; fi; }
command() { if [[ ${1-} == -* ]]; then builtin command "$@"; else __carma_report "$@"; fi; }

# Whether a command, as bash prints it, is to be left out, and the words in __carma_text reported.
__carma_writes() {
  local text=$1 writes='' name kind
  __carma_words=()
  shopt -s extdebug # not at the start, where bash would look for its debugger
  [[ $text =~ $__carma_heredoc ]] && text=${text%%"${BASH_REMATCH[0]}"*}${BASH_REMATCH[1]}
  while [[ $text =~ $__carma_redirection ]]; do
    [[ ${BASH_REMATCH[0]} == *'>'* && ${BASH_REMATCH[0]} != *'>&'[0-9] && ${BASH_REMATCH[0]} != */dev/* ]] && writes=1
    text=${text%"${BASH_REMATCH[0]}"}
  done
  __carma_text=$text
  [[ $text =~ $__carma_assignments ]]
  text=${text:${#BASH_REMATCH[0]}}
  name=${text%%[[:space:]]*}
  case $name in
    '' | '(('* | '[['* | \"\$__carma_* | *'$('* | *\`*) return 1 ;;
    *[\$\\\'\"]*) eval "__carma_words=($name)"; name=${__carma_words[0]-} ;;
  esac
  kind=$(type -t -- "$name")
  [[ $kind == keyword || $name == __carma_* ]] && return 1
  [[ $writes ]] && { [[ $kind != function || $name == exec ]]; return; }
  [[ $kind == function || $kind == builtin ]] && return 1
  [[ ${name##*/} =~ $__carma_prints ]] && return 1
  eval "function $name { __carma_report ${name@Q} \"\$@\"; }"
  return 1
}

__carma_report() {
  local line=''
  case ${1-} in
    *conda | *mamba) [[ ${2-} == shell.* ]] && { builtin command "$@"; return; } ;;
    bash | sh | */bash | */sh) builtin command bash "${@:2}"; return 0 ;;
    */*)
      read -r line 2>/dev/null <"$1"
      [[ $line == '#!'*[/\ ]?(ba)sh?(\ -*) ]] && { builtin command bash "$@"; return 0; }
      ;;
  esac
  BASH_ENV='' "$__carma_python" -I -S -c "$__carma_code" "$@"
  (trap '' PIPE; printf '\002' 2>/dev/null) || : # the next in a pipe may be gone
}

set -o functrace
trap '! { __carma_writes "$BASH_COMMAND" && { eval "__carma_words=($__carma_text)"; __carma_report "${__carma_words[@]}"; }; }' DEBUG
