# Writes the verdict. When check.pl does not say how many of its tests passed (it was killed, say), no verdict is
# written: a verifier that could not look must not count against the agent.
set -eu
set -- $(perl check.pl "$INFRANOISE_WORKDIR/tour.txt")
if [ "$#" -ne 2 ]; then
    echo "check.pl came to no result" >&2
    exit 1
fi
echo "$1 of $2 tests passed"
reward=0
if [ "$1" -eq "$2" ]; then
    reward=1
fi
printf '{"reward": %s, "nonce": "%s", "tests": %s}\n' "$reward" "$INFRANOISE_NONCE" "$2" > "$INFRANOISE_REWARD_FILE"
