# Loads every order, sorts them all at once and picks from the sorted list.
set -eu
perl - <<'PERL'
use strict;
use warnings;

open my $in, "<", "orders.csv" or die "orders.csv: $!";
my @columns = split /,/, <$in> =~ s/\s+\z//r;
my @orders;
while (my $line = <$in>) {
    chomp $line;
    my %order;
    @order{@columns} = split /,/, $line;
    push @orders, \%order;
}

my @sorted = sort { $a->{amount} <=> $b->{amount} or $a->{order} <=> $b->{order} } @orders;
my %of;
push @{$of{$_->{region}}}, $_ for @sorted;

open my $out, ">", "medians.csv" or die "medians.csv: $!";
for my $region (sort keys %of) {
    my $median = $of{$region}[($#{$of{$region}}) / 2];
    print $out "$region,$median->{order},$median->{amount}\n";
}
close $out or die "medians.csv: $!";
PERL
