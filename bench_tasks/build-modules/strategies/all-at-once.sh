# As many compilers as there are modules, as `make -j` without a number has.
set -eu
mkdir -p build
ls src | sed 's/\.src$//' | xargs -P 0 -I NAME perl mcc.pl src/NAME.src build/NAME.o
perl mcc.pl --link app.map build/*.o
