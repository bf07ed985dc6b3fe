# Always right: keeps the sum of every selection of the first 20 invoices, with its invoices, in one table, then looks
# up what is missing for every selection of the other 20.
set -eu
perl - <<'PERL'
use strict;
use warnings;

my $payment = 460443637041;
open my $in, "<", "invoices.csv" or die "invoices.csv: $!";
<$in>;
my @invoices = map { chomp; [split /,/] } <$in>;
my @left = @invoices[0 .. 19];
my @right = @invoices[20 .. 39];

my %selection = (0 => '');
my @sums = (0);
for my $invoice (@left) {
    my ($name, $amount) = @$invoice;
    for my $index (0 .. $#sums) {
        my $sum = $sums[$index] + $amount;
        push @sums, $sum;
        $selection{$sum} = "$selection{$sums[$index]} $name";
    }
}

sub search {
    my ($missing, $next, @taken) = @_;
    if ($next == @right) {
        return exists $selection{$missing} ? (split(' ', $selection{$missing}), @taken) : ();
    }
    my @found = search($missing, $next + 1, @taken);
    return @found if @found;
    return search($missing - $right[$next][1], $next + 1, @taken, $right[$next][0]);
}

open my $out, ">", "paid.txt" or die "paid.txt: $!";
print $out "$_\n" for search($payment, 0);
close $out or die "paid.txt: $!";
PERL
