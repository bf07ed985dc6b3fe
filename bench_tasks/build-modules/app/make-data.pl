# Writes symbols.txt and src/, the same on every machine: a generator of its own, no clock, no system random numbers.
use strict;
use warnings;

my $state = 16180339;

sub below {
    my ($limit) = @_;
    $state = ($state * 1103515245 + 12345) & 0x7fffffff;
    return int($limit * $state / 0x80000000);
}

open my $out, '>', 'symbols.txt' or die "symbols.txt: $!";
my $address = 4096;
for my $number (1 .. 55_000) {
    my $size = 1 + below(400);
    printf $out "s%05d %d %d\n", $number, $address, $size;
    $address += $size;
}
close $out or die "symbols.txt: $!";

mkdir 'src' or die "src: $!";
for my $module (1 .. 12) {
    my $path = sprintf 'src/m%02d.src', $module;
    open my $source, '>', $path or die "$path: $!";
    printf $source "s%05d\n", 1 + below(55_000) for 1 .. 40;
    close $source or die "$path: $!";
}
