"""The few lines of shell that run inside containers.

They keep to what dash, bash and busybox have as builtins: at a container's pids ceiling nothing can fork any
more, and a minimal image may lack every command but ``sh`` and ``sleep``.
"""

from __future__ import annotations

SHELL = "/bin/sh"

# Keeps the container alive whatever happens inside it. The kernel drops signals to PID 1 that it has no handler
# for; those that shells do handle are ignored. `wait` reaps orphans, which otherwise fill the pids ceiling. A
# shell that cannot fork (that ceiling again) exits, so the exit trap turns it into a new one, without a fork.
HOLDERS_SLEEP = "sleep 2147483647"
HOLDER = f""": infranoise-holder
trap '' HUP INT QUIT PIPE ALRM TERM USR1 USR2
trap 'exec {SHELL} -c "$0" "$0"' EXIT
exec >/dev/null 2>&1
while :; do {HOLDERS_SLEEP} & wait; done
"""

HOLDER_ARGV = (SHELL, "-c", HOLDER, HOLDER)

OOM_SCORE_ADJ_OF_CONTAINER = 300
OOM_SCORE_ADJ_OF_COMMAND = 900

# Makes the command the kernel's first victim, so that the holder and with it the counters survive. (The engine
# starts each exec in a session of its own already; `setsid` would fork here and lose the exit code.) A command
# that is not there is told by printing $0, a random token, at the end.
WRAPPER = f"""{{ echo {OOM_SCORE_ADJ_OF_COMMAND} >/proc/self/oom_score_adj; }} 2>/dev/null
infranoise_() {{
    case $1 in
    */*) [ -f "$1" ] && [ -x "$1" ]; return ;;
    esac
    set -f
    IFS=:
    for infranoise__ in $PATH; do
        [ -f "${{infranoise__:-.}}/$1" ] && [ -x "${{infranoise__:-.}}/$1" ] && return 0
    done
    command -v "$1" >/dev/null 2>&1
}}
if infranoise_ "$1"; then
    unset IFS infranoise__
    exec "$@"
fi
printf '%s: not found, or not executable\\n%s' "$1" "$0" >&2
exit 127
"""

# $1 is the holder's PID. When that is 1, one system call ends all others at once, which not even a fork bomb
# can outrun; else all but the holder's own are killed one by one. What PID 1 forked since (its next sleep) and
# what only waits to be reaped does not count as left.
KILL_ALL = """holder=$1
look() {
    left=
    for entry in /proc/[0-9]*; do
        pid=${entry#/proc/}
        case $pid in 1|$$|$holder) continue ;; esac
        name= state= parent=
        while read -r key value rest; do
            case $key in Name:) name=$value ;; State:) state=$value ;; PPid:) parent=$value; break ;; esac
        done <"$entry/status" || continue
        case $state in ''|Z|X) continue ;; esac
        case $parent/$name in "$holder/sleep"|"$holder/sh") continue ;; esac
        left="$left $pid"
    done
}
round=0
while [ $round -lt 100 ]; do
    round=$((round + 1))
    if [ "$holder" = 1 ]; then kill -9 -1; else look; [ -z "$left" ] || kill -9 $left; fi
    check=0
    while [ $check -lt 50 ]; do
        check=$((check + 1))
        look
        [ -n "$left" ] || exit 0
    done
done 2>/dev/null
exit 1
"""

# Prints every PID that runs the holder, which is told by how its command line begins ($1; `read` drops the zero
# bytes between its words): an entry point that runs it as a child has the same words further on.
FIND_HOLDER = """for entry in /proc/[0-9]*; do
    words=
    while read -r line; do words=$words$line; done <"$entry/cmdline"
    case $words$line in "$1"*) printf '%s\\n' "${entry#/proc/}" ;; esac
done 2>/dev/null
exit 0
"""

# Prints each readable file after a line with its name: cgroup files, where the host's cannot be read.
READ_FILES = """for file do
    [ -r "$file" ] || continue
    printf '==> %s\\n' "$file"
    while IFS= read -r line; do printf '%s\\n' "$line"; done <"$file"
done 2>/dev/null
exit 0
"""
