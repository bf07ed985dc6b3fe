# One module after the other: one compiler's memory at a time.
set -eu
mkdir -p build
for source in src/*.src; do
    perl mcc.pl "$source" "build/$(basename "$source" .src).o"
done
perl mcc.pl --link app.map build/*.o
