# Prints how many tests passed and how many there are: only known invoices, none twice, and the right sum.
use strict;
use warnings;
use Fcntl qw(O_NOFOLLOW O_NONBLOCK O_RDONLY);

my $payment = 460443637041;

# Returns the lines of a plain file of at most 64 KiB with no line over 200 bytes; of anything else (missing, a link, a
# directory, too big) none. Dies when the file cannot be read: that is no answer's fault.
sub answer_lines {
    my ($path) = @_;
    return if not lstat $path or not -f _ or -s _ > 65536;
    sysopen my $in, $path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK or die "$path: $!";
    my $got = sysread $in, my $text, 65537;
    die "$path: $!" if not defined $got;
    my @lines = split /\r?\n/, $text;
    return if $got > 65536 or grep { length > 200 } @lines;
    return @lines;
}

# The verifier's own copy: the one beside the answer may have been changed.
open my $in, '<', 'invoices.csv' or die "invoices.csv: $!";
<$in>;
my %amount = map { chomp; split /,/ } <$in>;

my @names = map { s/\A\s+|\s+\z//gr } answer_lines($ARGV[0]);
my @known = grep { exists $amount{$_} } @names;
my %times;
$times{$_}++ for @names;
my $sum = 0;
$sum += $amount{$_} for @known;

my $passed = 0;
$passed++ if @names and @known == @names;
$passed++ if @names and keys %times == @names;
$passed++ if $sum == $payment;
print "$passed 3\n";
