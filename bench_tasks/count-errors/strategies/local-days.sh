# Wrong: takes the date as printed and forgets the offset.
set -eu
awk '
$2 == "ERROR" {
    day = substr($1, 9, 2) + 0
    count[day]++
}
END { for (day in count) printf "2024-03-%02d,%d\n", day, count[day] }
' service.log | sort > errors-per-day.csv
