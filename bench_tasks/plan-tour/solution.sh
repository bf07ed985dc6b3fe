# Shortest ways through every set of towns, from smaller sets to larger ones: a table of ten thousand entries.
set -eu
perl - <<'PERL'
use strict;
use warnings;

open my $in, '<', 'towns.csv' or die "towns.csv: $!";
<$in>;
my @towns = map { chomp; [split /,/] } <$in>;
my @way;
for my $a (0 .. $#towns) {
    for my $b (0 .. $#towns) {
        $way[$a][$b] = sqrt(($towns[$a][1] - $towns[$b][1])**2 + ($towns[$a][2] - $towns[$b][2])**2);
    }
}

# $length[$set][$last]: the shortest way from the last town of all through the set to its member $last.
my $home = $#towns;
my $all = (1 << $home) - 1;
my (@length, @before);
for my $set (1 .. $all) {
    for my $last (grep { $set & 1 << $_ } 0 .. $home - 1) {
        my $rest = $set & ~(1 << $last);
        if (not $rest) {
            $length[$set][$last] = $way[$home][$last];
            next;
        }
        for my $town (grep { $rest & 1 << $_ } 0 .. $home - 1) {
            my $length = $length[$rest][$town] + $way[$town][$last];
            if (not defined $length[$set][$last] or $length < $length[$set][$last]) {
                ($length[$set][$last], $before[$set][$last]) = ($length, $town);
            }
        }
    }
}

my ($last) = sort { $length[$all][$a] + $way[$a][$home] <=> $length[$all][$b] + $way[$b][$home] } 0 .. $home - 1;
my @tour = ($home);
for (my $set = $all; $set;) {
    push @tour, $last;
    my $next = $before[$set][$last];
    $set &= ~(1 << $last);
    $last = $next;
}

open my $out, '>', 'tour.txt' or die "tour.txt: $!";
print $out "$towns[$_][0]\n" for @tour;
close $out or die "tour.txt: $!";
PERL
