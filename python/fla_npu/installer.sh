#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the operator package (OPP) of fla-npu into a vendors directory, and removes it again.
# With a packed tree behind its last line this is the self-extracting .run; without one, --from names a tree.
set -eu
LC_ALL=C
export LC_ALL
about='fla-npu'     # what --help calls it
payload_at=0        # line at which the packed tree begins, 0 without one
payload_sha256=''
payload_arch=''     # machine its libraries are for
payload_glibc=0     # minor version of glibc 2 that they need

usage() {
    cat <<END
$about

usage: sh $0 [--install-path=DIR] [--quiet]     install into DIR/vendors/fla_npu
       sh $0 --uninstall [--install-path=DIR]   remove it without a trace
       sh $0 --extract=DIR                      unpack the plain tree, install nothing
       sh $0 --check                            is this file whole?

Without --install-path DIR is \$ASCEND_OPP_PATH, else \${XDG_DATA_HOME:-~/.local/share}/fla_npu/opp, where
fla_npu looks by itself. DIR/vendors/config.ini gets fla_npu as its first vendor. To use another DIR, source
DIR/vendors/fla_npu/bin/set_env.bash (or .csh, .fish) before Python starts.
END
}
die() {
    printf 'fla-npu: %s\n' "$*" >&2
    exit 1
}
need() {
    for program; do
        command -v "$program" >/dev/null 2>&1 || die "this system has no program $program, which is needed here; install it"
    done
}
say() { [ -n "$quiet" ] || printf '%s\n' "$*"; }

# A word for each shell. Nothing is expanded between single quotes, but every shell ends them its own way.
quote_sh() { printf "'%s'" "$(printf '%s\n' "$1" | sed "s/'/'\\\\''/g")"; }
quote_csh() { printf "'%s'" "$(printf '%s\n' "$1" | sed "s/'/'\\\\''/g; s/!/\\\\!/g")"; }
quote_fish() { printf "'%s'" "$(printf '%s\n' "$1" | sed "s/[\\\\']/\\\\&/g")"; }

# The lines that make $1 (a vendor directory) the OPP in use; CANN gets the path only for kernels of its own.
env_bash() {
    v=$(quote_sh "$1")
    echo "export FLA_NPU_OPP_PATH=$v"
    [ "$2" = twin ] || cat <<END
case ":\${ASCEND_CUSTOM_OPP_PATH-}:" in
*:$v:*) ;;
*) export ASCEND_CUSTOM_OPP_PATH=$v"\${ASCEND_CUSTOM_OPP_PATH:+:\$ASCEND_CUSTOM_OPP_PATH}" ;;
esac
END
}
env_csh() {
    v=$(quote_csh "$1")
    echo "setenv FLA_NPU_OPP_PATH $v"
    [ "$2" = twin ] || cat <<END
if ( ! \$?ASCEND_CUSTOM_OPP_PATH ) setenv ASCEND_CUSTOM_OPP_PATH ''
set fla_npu_old = \$ASCEND_CUSTOM_OPP_PATH:q
set fla_npu_seen = \`sh -c 'case ":\$ASCEND_CUSTOM_OPP_PATH:" in (*":\$FLA_NPU_OPP_PATH:"*) echo 1;; (*) echo 0;; esac'\`
if ( \$fla_npu_seen == 0 ) then
    setenv ASCEND_CUSTOM_OPP_PATH $v
    if ( \$fla_npu_old:q != '' ) setenv ASCEND_CUSTOM_OPP_PATH \${ASCEND_CUSTOM_OPP_PATH:q}':'\${fla_npu_old:q}
endif
unset fla_npu_old fla_npu_seen
END
}
# For eval, which joins lines: the value as it comes out now.
now_csh() {
    printf "setenv FLA_NPU_OPP_PATH %s;" "$(quote_csh "$1")"
    [ "$2" != twin ] || return 0
    eval "$(env_bash "$1" "$2")"
    printf " setenv ASCEND_CUSTOM_OPP_PATH %s;" "$(quote_csh "$ASCEND_CUSTOM_OPP_PATH")"
}
env_fish() {
    v=$(quote_fish "$1")
    echo "set -gx FLA_NPU_OPP_PATH $v"
    [ "$2" = twin ] || cat <<END
contains -- $v \$ASCEND_CUSTOM_OPP_PATH
or set -gx ASCEND_CUSTOM_OPP_PATH $v (string split -n : -- "\$ASCEND_CUSTOM_OPP_PATH")
END
}

# config.ini on standard input without fla_npu in its list. Every other byte stays: comments, spaces, line ends.
without_us() {
    sed -e '/^[[:space:]]*load_priority[[:space:]]*=/!b' -e ':again' \
        -e 's/=\([[:blank:]]*\)fla_npu[[:blank:]]*,[[:blank:]]*/=\1/;t again' \
        -e 's/[[:blank:]]*,[[:blank:]]*fla_npu[[:blank:]]*,/,/;t again' \
        -e 's/[[:blank:]]*,[[:blank:]]*fla_npu\([[:space:]]*\)$/\1/;t again' \
        -e 's/=\([[:blank:]]*\)fla_npu\([[:space:]]*\)$/=\1\2/'
}
has_order() { grep -q '^[[:space:]]*load_priority[[:space:]]*=' "$1"; }

# From what is in config.ini: $1/.config.before, what it is without us, and $1/.config.after, with us first.
plan_order() {
    kept="$vendors/fla_npu/.config"
    [ -f "$config" ] || kept='' # somebody deleted it: nothing to come back to
    if [ -n "$kept" ] && cmp -s "$kept.after" "$config"; then
        [ ! -f "$kept.before" ] || cp -p "$kept.before" "$1/.config.before"
    elif [ -n "$kept" ]; then
        copy_config "$1/.config.before"
    fi
    if [ ! -f "$1/.config.before" ]; then
        echo 'load_priority=fla_npu' >"$1/.config.after"
    elif has_order "$1/.config.before"; then
        without_us <"$1/.config.before" | sed -e '/^[[:space:]]*load_priority[[:space:]]*=/!b' \
            -e 's/=\([[:blank:]]*\)\([^[:space:]]\)/=\1fla_npu,\2/;t' -e 's/=\([[:blank:]]*\)/=\1fla_npu/' >"$1/.config.after"
    else
        { cat "$1/.config.before" && { [ -z "$(tail -c 1 "$1/.config.before")" ] || echo; } &&
            echo 'load_priority=fla_npu'; } >"$1/.config.after"
    fi
}
copy_config() { cp -pL "$config" "$1" && chmod u+w "$1"; }

# The text of file $1 becomes config.ini, which keeps its owner, its mode, and what it is: a file or a link. All
# that needs room on the disk is done beforehand.
prepare_config() {
    [ ! -L "$config" ] || return 0
    mode=''
    if [ -f "$config" ]; then
        mode=$(stat -c %a "$config")
        copy_config "$vendors/.fla_npu.config" || return 1
    fi
    cat "$1" >"$vendors/.fla_npu.config" && [ -z "$mode" ] || chmod "$mode" "$vendors/.fla_npu.config"
}
commit_config() {
    if [ -L "$config" ]; then cat "$1" >"$config"; else mv -f "$vendors/.fla_npu.config" "$config"; fi
}
write_config() { prepare_config "$1" && commit_config "$1"; }

# Takes $vendors/fla_npu out of config.ini. When nobody wrote to it since, it is what it was, byte for byte.
leave_order() {
    [ -f "$config" ] || return 0
    kept="$vendors/fla_npu/.config"
    if cmp -s "$kept.after" "$config" && [ ! -f "$kept.before" ]; then
        rm -f "$config"
    elif cmp -s "$kept.after" "$config" && [ ! -L "$config" ] && without_us <"$kept.before" | cmp -s "$kept.before" -; then
        chmod "$(stat -c %a "$config")" "$kept.before" && mv -f "$kept.before" "$config"
    else
        from=$config drop='/^[[:space:]]*load_priority[[:space:]]*=[[:space:]]*$/d'
        if cmp -s "$kept.after" "$config"; then from=$kept.before; fi
        if [ -f "$kept.before" ] && has_order "$kept.before"; then drop=''; fi # an empty list was theirs
        without_us <"$from" | sed "$drop" >"$vendors/.fla_npu.rest"
        if [ -s "$vendors/.fla_npu.rest" ]; then write_config "$vendors/.fla_npu.rest"; else rm -f "$config"; fi
        rm -f "$vendors/.fla_npu.rest"
    fi
}

# One installation at a time. The lock is the directory itself, which whoever had it before may have removed.
take_turn() {
    command -v flock >/dev/null 2>&1 || return 0
    while command exec 9<"$vendors" || [ "$action" = install ]; do
        flock 9 2>/dev/null || return 0 # a file system without locks
        if [ /proc/self/fd/9 -ef "$vendors" ] || [ ! -e /proc/self/fd/9 ]; then return 0; fi
        [ "$action" = install ] || break
        make_directories
    done
    die "there is no fla_npu in $vendors"
}
# Puts right what a killed installation or removal left: the old vendor comes back, and $created says which
# directories were made for it.
look_back() {
    for left in "$vendors"/.fla_npu.old*; do
        if [ -d "$left" ] && [ ! -e "$vendors/fla_npu" ]; then mv "$left" "$vendors/fla_npu"; fi
    done
    for left in "$vendors"/.fla_npu.*/.created "$vendors/.fla_npu.created" "$vendors/fla_npu/.created"; do
        if [ -f "$left" ]; then created=$(cat "$left"); fi
    done
}
sweep() {
    for left in "$vendors"/.fla_npu.*; do
        case $left in "$1" | "$vendors/.fla_npu.created") ;; *) rm -rf "$left" ;; esac
    done
}

# Makes $vendors. What was not there comes in one step, with the list of it inside, the deepest first: whoever
# is killed leaves what the next one knows how to remove.
make_directories() {
    while nearest; do
        rest=${vendors#"$at"/} made="$at/.fla_npu.made.$$" list='' top=$at/${rest%%/*}
        mkdir -p "$made${vendors#"$top"}" 2>/dev/null || die "cannot make $top: choose another place with --install-path"
        while [ "$rest" != "${rest%/*}" ]; do
            list="$list$at/$rest
" rest=${rest%/*}
        done
        printf '%s\n' "$list$top" >"$made${vendors#"$top"}/.fla_npu.created" || die "$full"
        mv -T "$made" "$top" 2>/dev/null || rm -rf "$made" # somebody else was first: look again
    done
}
# $at: the nearest folder above $vendors that is there, without leftovers of the killed; fails when that is $vendors.
nearest() {
    at=$vendors
    while [ ! -d "$at" ]; do at=$(dirname "$at"); done
    for left in "${at%/}"/.fla_npu.made.*; do
        if [ -d "$left" ] && ! kill -0 "${left##*.}" 2>/dev/null; then rm -rf "$left"; fi
    done
    at=${at%/}
    [ "$at" != "$vendors" ]
}

# Removes the directories of $created that are empty, in one step when all are.
remove_directories() {
    top=$(printf '%s\n' "$created" | tail -n 1)
    if [ -d "$top" ] && [ "$(find "$top" ! -type d)" = "$vendors/.fla_npu.created" ]; then
        gone=$(dirname "$top")/.fla_npu.made.$$
        mv -T "$top" "$gone" && rm -f "$gone${vendors#"$top"}/.fla_npu.created"
        find "$gone" -depth -type d -exec rmdir {} + 2>/dev/null || :
        [ ! -d "$gone" ] || mv -T "$gone" "$top" # somebody wrote to it meanwhile
    fi
    rm -f "$vendors/.fla_npu.created"
    printf '%s\n' "$created" | while IFS= read -r made; do
        [ -z "$made" ] || rmdir "$made" 2>/dev/null || :
    done
}
clear_up() {
    rm -rf "$new" "$vendors/.fla_npu.config"
    [ -e "$vendors/fla_npu" ] || remove_directories
}

unpack() {
    [ "$payload_at" -gt 0 ] || die "this file has no OPP in it; name a tree with --from=DIR"
    need tail tar gzip
    check
    tail -n "+$payload_at" "$self" | gzip -dc | tar -xf - -C "$1" || die "cannot unpack into $1 (is the disk full?)"
}
check() {
    need tail sha256sum cut
    found=$(tail -n "+$payload_at" "$self" | sha256sum | cut -d' ' -f1)
    [ "$found" = "$payload_sha256" ] || die "$self is damaged or incomplete (sha256 $found, needed $payload_sha256); fetch it again"
}

install_tree() {
    if [ -n "$shared" ]; then umask 022; fi # other users read it
    full="cannot write to $vendors (is the disk full?)"
    new="$vendors/.fla_npu.new.$$" created=''
    make_directories
    trap clear_up EXIT
    trap 'exit 1' HUP INT TERM
    [ -w "$vendors" ] || die "permission denied: $vendors is not writable for uid $(id -u); choose --install-path, or run as its owner"
    take_turn
    look_back
    if [ -e "$vendors/fla_npu" ] || [ -L "$vendors/fla_npu" ]; then
        [ -f "$vendors/fla_npu/.created" ] ||
            die "$vendors/fla_npu is there and was not installed by this program; remove it the way it came, or choose another place"
    fi
    mkdir "$new" && printf '%s\n' "$created" >"$new/.created" || die "$full"
    sweep "$new"
    if [ -n "$from" ]; then
        cp -RL "$from/vendors/fla_npu/." "$new" && cp "$from/manifest.json" "$new" || die "$full"
    else
        mkdir "$new/.tree" && unpack "$new/.tree"
        mv "$new/.tree"/vendors/fla_npu/* "$new/.tree/manifest.json" "$new"
        rm -rf "$new/.tree"
    fi
    chmod -R u+w,a+rX "$new"
    mkdir -p "$new/bin" || die "$full"
    kind=$(backend_of "$new")
    for shell in bash csh fish; do
        "env_$shell" "$vendors/fla_npu" "$kind" >"$new/bin/set_env.$shell" || die "$full"
    done
    plan_order "$new" && prepare_config "$new/.config.after" || die "$full"
    old="$vendors/.fla_npu.old" # who looks between these two renames waits for the second
    [ ! -e "$vendors/fla_npu" ] || mv "$vendors/fla_npu" "$old"
    mv "$new" "$vendors/fla_npu"
    rm -rf "$old" "$vendors/.fla_npu.created"
    if cmp -s "$vendors/fla_npu/.config.after" "$config"; then
        rm -f "$vendors/.fla_npu.config"
    else
        commit_config "$vendors/fla_npu/.config.after" || die "$full"
    fi
    say "installed $about in $vendors/fla_npu"
}

backend_of() {
    if [ -e "$1/op_api/lib/libfla_twin.so" ]; then echo twin; else echo cann; fi
}

remove_tree() {
    ! nearest || die "there is no fla_npu in $vendors"
    [ -w "$vendors" ] || die "permission denied: $vendors is not writable for uid $(id -u); run as its owner"
    take_turn
    created=none
    look_back
    if [ -e "$vendors/fla_npu" ] || [ -L "$vendors/fla_npu" ]; then
        [ -f "$vendors/fla_npu/.created" ] ||
            die "$vendors/fla_npu was not installed by this program; its own uninstaller, or pip, removes it"
    elif [ "$created" = none ]; then
        die "there is no fla_npu in $vendors"
    fi
    # What is done when the vendor is half gone must be known then: a removal may be killed, too.
    printf '%s\n' "$created" >"$vendors/.fla_npu.created"
    leave_order
    [ ! -e "$vendors/fla_npu" ] || mv "$vendors/fla_npu" "$vendors/.fla_npu.gone.$$"
    sweep ''
    remove_directories
    say "removed fla_npu from $vendors"
}

self=$0 action=install from='' quiet='' path='' shell='' vendor=''
for argument; do
    value=${argument#*=}
    case $argument in
    --install-path=*) path=$value ;;
    --from=*) from=$value ;;
    --extract=*) action=extract path=$value ;;
    --print-env=*) action=env shell=$value ;;
    --vendor=*) vendor=$value ;;
    --uninstall | --check) action=${argument#--} ;;
    --quiet | -q) quiet=yes ;;
    --help | -h)
        usage
        exit 0
        ;;
    *) die "unknown option $argument; see --help" ;;
    esac
done
if [ "$action" = env ]; then
    case $shell in
    bash | fish) "env_$shell" "$vendor" "$(backend_of "$vendor")" ;;
    csh) now_csh "$vendor" "$(backend_of "$vendor")" ;;
    *) die "no set_env for $shell; there are bash (also sh, zsh), csh (also tcsh) and fish" ;;
    esac
    exit 0
fi
if [ "$action" = check ]; then
    check
    say "$self is whole"
    exit 0
fi
[ -n "$path" ] || path=${ASCEND_OPP_PATH-}
shared=$path
if [ -z "$path" ]; then
    case ${XDG_DATA_HOME-} in
    /*) data=$XDG_DATA_HOME ;;
    *) data=${HOME:+$HOME/.local/share} ;; # a relative one does not count
    esac
    [ -n "$data" ] || die "no place to install to: this user has no home; name one with --install-path=DIR"
    path=$data/fla_npu/opp
fi
newline='
'
case $path in
*:* | *"$newline"*) die "$path cannot be in a path variable (':' or a line break); choose another --install-path" ;;
/*) ;;
'~' | '~/'*) path=$HOME${path#'~'} ;; # not every shell expands it behind a '='
*) path=$(pwd)/$path ;;
esac
case $path/ in
*/../*) path=$(readlink -m "$path") || die "$path has '..' in it; name the folder without" ;;
esac
path=${path%/}
if [ "$action" != extract ]; then # the vendors folder or our vendor may be named, too
    path=${path%/vendors/fla_npu}
    path=${path%/vendors}
fi
vendors=$path/vendors
config=$vendors/config.ini
if [ "$action" = uninstall ]; then
    remove_tree
    exit 0
fi
machine=$(uname -m)
case $payload_arch in
'' | "$machine") ;;
*) [ "$action" = extract ] || die "this package is for $payload_arch, this machine is $machine" ;;
esac
glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed -n 's/^glibc 2\.\([0-9]*\).*/\1/p')
if [ "$action" = install ] && [ "${glibc:-999}" -lt "$payload_glibc" ]; then
    die "this package needs glibc 2.$payload_glibc, this system has 2.$glibc; build here: pip install . in a checkout"
fi
if [ "$action" = extract ]; then
    mkdir -p "$path" || die "cannot make $path: choose another folder to extract to"
    unpack "$path"
else
    install_tree
fi
exit 0
