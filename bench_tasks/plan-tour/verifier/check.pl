# Prints how many tests passed and how many there are: only known towns, every town once, and no longer than needed.
use strict;
use warnings;
use Fcntl qw(O_NOFOLLOW O_NONBLOCK O_RDONLY);

# Found by trying all trips, outside the container; the next best is longer by 0.23.
my $shortest = 2669.9135;

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
open my $in, '<', 'towns.csv' or die "towns.csv: $!";
<$in>;
my %place = map { chomp; my ($town, @xy) = split /,/; $town => \@xy } <$in>;

my @names = map { s/\A\s+|\s+\z//gr } answer_lines($ARGV[0]);
my @known = grep { exists $place{$_} } @names;
my %times;
$times{$_}++ for @known;
my $length = 0;
for my $index (0 .. $#known) {
    my ($a, $b) = @place{@known[$index - 1, $index]};
    $length += sqrt(($a->[0] - $b->[0])**2 + ($a->[1] - $b->[1])**2);
}

my $passed = 0;
$passed++ if @names and @known == @names;
$passed++ if @names == keys %place and keys %times == keys %place;
$passed++ if keys %times == keys %place and $length < $shortest + 0.01;
print "$passed 3\n";
