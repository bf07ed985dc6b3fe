#!/bin/bash
# Writes the reward. When check.pl does not say how many of its tests passed (it was killed, say), no reward is
# written: a verifier that could not look must not count against the agent.
set -eu
read -r passed tests < <(perl /tests/check.pl /app/visitors.csv)
echo "$passed of $tests tests passed"
reward=0
if [ "$passed" -eq "$tests" ]; then
    reward=1
fi
echo "{\"reward\": $reward}" > /logs/verifier/reward.json
