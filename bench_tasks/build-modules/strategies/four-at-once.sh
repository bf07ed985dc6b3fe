# Four compilers at a time, as `make -j 4` has.
set -eu
mkdir -p build
ls src | sed 's/\.src$//' | xargs -P 4 -I NAME perl mcc.pl src/NAME.src build/NAME.o
perl mcc.pl --link app.map build/*.o
