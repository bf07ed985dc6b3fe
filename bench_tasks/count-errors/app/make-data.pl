# Writes service.log, the same on every machine: a generator of its own, no clock, no system random numbers.
use strict;
use warnings;

my $state = 271828182;
my @offsets = ([0, '+00:00'], [120, '+02:00'], [-300, '-05:00'], [570, '+09:30']);

sub uniform {
    $state = ($state * 1103515245 + 12345) & 0x7fffffff;
    return $state / 0x80000000;
}

open my $out, '>', 'service.log' or die "service.log: $!";
for my $line (1 .. 200_000) {
    my $minutes = 24 * 60 + int($line * 6 * 24 * 60 / 200_000);
    my ($offset, $text) = @{$offsets[@offsets * uniform()]};
    my $local = $minutes + $offset;
    my $draw = uniform();
    my $level = $draw < 0.08 ? 'ERROR' : $draw < 0.2 ? 'WARN' : 'INFO';
    my $message = uniform() < 0.1 ? 'retried after ERROR 17' : 'request handled';
    printf $out "2024-03-%02dT%02d:%02d:%02d%s %s worker-%d %s\n", 1 + int($local / 1440), int($local / 60) % 24,
        $local % 60, int(60 * uniform()), $text, $level, 1 + int(8 * uniform()), $message;
}
close $out or die "service.log: $!";
