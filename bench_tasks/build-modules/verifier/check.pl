# Prints how many tests passed and how many there are: one per module, and one for nothing else being there.
use strict;
use warnings;
use Fcntl qw(O_NOFOLLOW O_NONBLOCK O_RDONLY);

# Compiled from the same modules outside the container.
my @expected = (
    'm01,212839398',
    'm02,490039092',
    'm03,899619939',
    'm04,217459195',
    'm05,1035270715',
    'm06,394197354',
    'm07,651872716',
    'm08,594611246',
    'm09,873559981',
    'm10,636566361',
    'm11,723533382',
    'm12,889310067',
);

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

my @lines = answer_lines($ARGV[0]);
my $passed = @lines == @expected ? 1 : 0;
for my $index (0 .. $#expected) {
    $passed++ if defined $lines[$index] and $lines[$index] eq $expected[$index];
}
print "$passed ", @expected + 1, "\n";
