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
printenv ASCEND_CUSTOM_OPP_PATH | tr ':' '\\n' | grep -Fqx -e $v
if ( \$status ) then
    setenv ASCEND_CUSTOM_OPP_PATH $v
    if ( \$fla_npu_old:q != '' ) setenv ASCEND_CUSTOM_OPP_PATH \${ASCEND_CUSTOM_OPP_PATH:q}':'\${fla_npu_old:q}
endif
unset fla_npu_old
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

# config.ini of $vendors with fla_npu first ($1 = install) or without it; other lines stay as they are.
order() {
    old="$vendors/config.ini" names=''
    [ ! -f "$old" ] || names=$(sed -n 's/^[[:space:]]*load_priority[[:space:]]*=//p' "$old" | tail -n 1)
    names=$(printf '%s\n' "$names" | tr -d ' \t\r' | tr ',' '\n' | grep -Fvx -e fla_npu -e '' | paste -sd, - || :)
    [ "$1" != install ] || names="fla_npu${names:+,$names}"
    others=''
    [ ! -f "$old" ] || others=$(grep -v '^[[:space:]]*load_priority[[:space:]]*=' "$old" || :)
    if [ -z "$names$others" ]; then
        rm -f "$old"
        return
    fi
    [ ! -f "$old" ] || cp -p "$old" "$vendors/.fla_npu.config" # its owner and mode stay
    {
        [ -z "$others" ] || printf '%s\n' "$others"
        [ -z "$names" ] || printf 'load_priority=%s\n' "$names"
    } >"$vendors/.fla_npu.config"
    mv -f "$vendors/.fla_npu.config" "$old"
}

# One installation at a time; what a killed one left is put right. The lock is the directory itself.
take_turn() {
    if command -v flock >/dev/null 2>&1; then
        exec 9<"$vendors" && flock 9
    fi
    for left in "$vendors"/.fla_npu.old.*; do
        if [ -d "$left" ] && [ ! -e "$vendors/fla_npu" ]; then mv "$left" "$vendors/fla_npu"; fi
    done
    rm -rf "$vendors"/.fla_npu.*
}

# Makes directory $1 and prints those that were not there, the deepest first.
make_directory() {
    made='' at="$1"
    while [ ! -d "$at" ] && [ "$at" != / ] && [ "$at" != . ]; do
        made="$made$at
" at=$(dirname "$at")
    done
    mkdir -p "$1" || die "cannot make $1: choose another place with --install-path"
    printf '%s' "$made"
}

remove_directories() {
    printf '%s\n' "$created" | while IFS= read -r made; do
        if [ -n "$made" ]; then rmdir "$made" 2>/dev/null || break; fi
    done
}
clear_up() {
    rm -rf "$new"
    [ -e "$vendors/fla_npu" ] || remove_directories
}

unpack() {
    [ "$payload_at" -gt 0 ] || die "this file has no OPP in it; name a tree with --from=DIR"
    check
    tail -n "+$payload_at" "$self" | gzip -dc | tar -xf - -C "$1" || die "cannot unpack into $1 (is the disk full?)"
}
check() {
    found=$(tail -n "+$payload_at" "$self" | sha256sum | cut -d' ' -f1)
    [ "$found" = "$payload_sha256" ] || die "$self is damaged or incomplete (sha256 $found, needed $payload_sha256); fetch it again"
}

install_tree() {
    created=$(make_directory "$vendors" && printf .) || exit 1
    created=$(printf '%s' "${created%.}")
    new="$vendors/.fla_npu.new.$$"
    trap clear_up EXIT
    trap 'exit 1' HUP INT TERM
    [ -w "$vendors" ] || die "permission denied: $vendors is not writable for uid $(id -u); choose --install-path, or run as its owner"
    take_turn
    if [ -e "$vendors/fla_npu" ] && [ ! -f "$vendors/fla_npu/.created" ]; then
        die "$vendors/fla_npu is there and was not installed by this program; remove it the way it came, or choose another place"
    fi
    [ ! -f "$vendors/fla_npu/.created" ] || created=$(cat "$vendors/fla_npu/.created")
    mkdir "$new"
    if [ -n "$from" ]; then
        cp -RL "$from/vendors/fla_npu/." "$new" && cp "$from/manifest.json" "$new" ||
            die "cannot copy to $vendors (is the disk full?)"
    else
        mkdir "$new/.tree" && unpack "$new/.tree"
        mv "$new/.tree"/vendors/fla_npu/* "$new/.tree/manifest.json" "$new"
        rm -rf "$new/.tree"
    fi
    chmod -R u+w,a+rX "$new"
    mkdir -p "$new/bin"
    printf '%s\n' "$created" >"$new/.created"
    kind=$(backend_of "$new")
    for shell in bash csh fish; do
        "env_$shell" "$vendors/fla_npu" "$kind" >"$new/bin/set_env.$shell" || die "cannot write to $vendors (is the disk full?)"
    done
    old="$vendors/.fla_npu.old.$$"
    [ ! -e "$vendors/fla_npu" ] || mv "$vendors/fla_npu" "$old"
    mv "$new" "$vendors/fla_npu"
    rm -rf "$old"
    order install
    say "installed $about in $vendors/fla_npu"
}

backend_of() {
    if [ -e "$1/op_api/lib/libfla_twin.so" ]; then echo twin; else echo cann; fi
}

remove_tree() {
    [ -d "$vendors" ] || die "there is no fla_npu in $vendors"
    [ -w "$vendors" ] || die "permission denied: $vendors is not writable for uid $(id -u); run as its owner"
    take_turn
    [ -d "$vendors/fla_npu" ] || die "there is no fla_npu in $vendors"
    [ -f "$vendors/fla_npu/.created" ] ||
        die "$vendors/fla_npu was not installed by this program; its own uninstaller, or pip, removes it"
    created=$(cat "$vendors/fla_npu/.created")
    mv "$vendors/fla_npu" "$vendors/.fla_npu.gone.$$"
    order remove
    rm -rf "$vendors/.fla_npu.gone.$$"
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
if [ -z "$path" ]; then
    data=${XDG_DATA_HOME:-${HOME:+$HOME/.local/share}}
    [ -n "$data" ] || die "no place to install to: this user has no home; name one with --install-path=DIR"
    path=$data/fla_npu/opp
fi
newline='
'
case $path in
*:* | *"$newline"*) die "$path cannot be in a path variable (':' or a line break); choose another --install-path" ;;
/*) ;;
*) path=$(pwd)/$path ;;
esac
path=${path%/}
path=${path%/vendors}
vendors=$path/vendors
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
    mkdir -p "$path"
    unpack "$path"
else
    install_tree
fi
exit 0
