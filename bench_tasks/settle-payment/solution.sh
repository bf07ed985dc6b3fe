# Exact with little memory: the sums of the first 20 invoices set bits in a small table; only what that table does not
# rule out for the other 20 is kept, and compared exactly in a second pass over the first 20.
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
my $slots = 2**24;

# Calls back with the sum of every selection and its bit mask, changing one invoice from call to call.
sub each_selection {
    my ($invoices, $visit) = @_;
    my ($sum, $mask) = (0, 0);
    $visit->($sum, $mask);
    for my $step (1 .. 2**@$invoices - 1) {
        my $bit = $step & -$step;
        $mask ^= $bit;
        my $amount = $invoices->[log($bit) / log(2) + 0.5][1];
        $sum += $mask & $bit ? $amount : -$amount;
        $visit->($sum, $mask);
    }
}

sub names {
    my ($invoices, $mask) = @_;
    return map { "$invoices->[$_][0]\n" } grep { $mask >> $_ & 1 } 0 .. $#$invoices;
}

my $seen = '';
vec($seen, $slots - 1, 1) = 0;
each_selection(\@left, sub { vec($seen, $_[0] % $slots, 1) = 1 });
my %candidate;
each_selection(\@right, sub {
    my $missing = $payment - $_[0];
    $candidate{$missing} = $_[1] if $missing >= 0 and vec($seen, $missing % $slots, 1);
});
each_selection(\@left, sub {
    my ($sum, $mask) = @_;
    return if not exists $candidate{$sum};
    open my $out, ">", "paid.txt" or die "paid.txt: $!";
    print $out names(\@left, $mask), names(\@right, $candidate{$sum});
    close $out or die "paid.txt: $!";
    exit;
});
die "no selection adds up to the payment\n";
PERL
