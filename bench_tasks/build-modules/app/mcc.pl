# A compiler in which one translation unit costs what one costs in C++: it reads all declarations to resolve a few.
use strict;
use warnings;

sub write_file {
    my ($path, @lines) = @_;
    open my $out, '>', $path or die "$path: $!\n";
    print $out @lines;
    close $out or die "$path: $!\n";
}

sub link_objects {
    my ($target, @objects) = @_;
    my @lines;
    for my $object (@objects) {
        open my $in, '<', $object or die "$object: $!\n";
        my $line = <$in>;
        die "$object: not an object file\n" if not defined $line or $line !~ /\Am\d\d,\d+\n\z/;
        push @lines, $line;
    }
    die 'undefined reference: ', scalar @lines, " objects of 12\n" if @lines != 12;
    write_file($target, @lines);
}

sub declarations {
    my %symbols;
    open my $in, '<', 'symbols.txt' or die "symbols.txt: $!\n";
    while (my $line = <$in>) {
        chomp $line;
        my ($name, $address, $size) = split / /, $line;
        $symbols{$name} = { address => $address, size => $size };
    }
    return \%symbols;
}

sub compile {
    my ($source, $target) = @_;
    my ($module) = $source =~ m{(m\d\d)\.src\z} or die "$source: not a module\n";
    my $symbols = declarations();
    # Sizes are aligned for the whole program, as an optimiser would.
    for my $symbol (values %$symbols) {
        $symbol->{size} = 8 * int(($symbol->{size} + 7) / 8);
    }
    my $code = 0;
    open my $in, '<', $source or die "$source: $!\n";
    while (my $name = <$in>) {
        chomp $name;
        my $symbol = $symbols->{$name} or die "$source: $name was not declared\n";
        $code = ($code * 31 + $symbol->{address} + $symbol->{size}) & 0x3fffffff;
    }
    write_file($target, "$module,$code\n");
}

if (@ARGV > 2 and $ARGV[0] eq '--link') {
    link_objects(@ARGV[1 .. $#ARGV]);
} elsif (@ARGV == 2) {
    compile(@ARGV);
} else {
    die "usage: mcc.pl SOURCE OBJECT | mcc.pl --link PROGRAM OBJECT...\n";
}
