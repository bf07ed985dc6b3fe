# Sorts with little memory (sort spills to files) and reads the sorted orders twice: counts, then medians.
set -eu
export LC_ALL=C
tail -n +2 orders.csv | sort -S 8M -t , -k 2,2 -k 4,4n -k 1,1n > sorted.csv
awk -F , '
    NR == FNR { count[$2]++; next }
    ++seen[$2] == int((count[$2] + 1) / 2) { print $2 "," $1 "," $4 }
' sorted.csv sorted.csv > medians.csv
rm sorted.csv
