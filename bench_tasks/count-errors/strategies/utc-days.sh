# Right: reads the level column and turns every time into UTC.
set -eu
awk '
$2 == "ERROR" {
    sign = substr($1, 20, 1) == "-" ? -1 : 1
    offset = sign * (substr($1, 21, 2) * 60 + substr($1, 24, 2))
    minutes = substr($1, 9, 2) * 1440 + substr($1, 12, 2) * 60 + substr($1, 15, 2) - offset
    day = int(minutes / 1440)
    count[day]++
}
END { for (day in count) printf "2024-03-%02d,%d\n", day, count[day] }
' service.log | sort > errors-per-day.csv
