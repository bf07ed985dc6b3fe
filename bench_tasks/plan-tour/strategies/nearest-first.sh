# Goes on to the nearest town that was not visited yet, which is rarely the shortest trip.
set -eu
perl - <<'PERL'
use strict;
use warnings;

open my $in, '<', 'towns.csv' or die "towns.csv: $!";
<$in>;
my ($here, @left) = map { chomp; [split /,/] } <$in>;

open my $out, '>', 'tour.txt' or die "tour.txt: $!";
print $out "$here->[0]\n";
while (@left) {
    @left = sort {
        ($a->[1] - $here->[1])**2 + ($a->[2] - $here->[2])**2 <=> ($b->[1] - $here->[1])**2 + ($b->[2] - $here->[2])**2
    } @left;
    $here = shift @left;
    print $out "$here->[0]\n";
}
close $out or die "tour.txt: $!";
PERL
