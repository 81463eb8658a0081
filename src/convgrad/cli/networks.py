"""The convolutions of some well-known networks, each distinct one once, as problem strings."""

from __future__ import annotations

# One layer in a line: `T` marks a transposed convolution; the name follows n. Sources: He et al. 2016, with the stride
# on the 3x3 convolution; Radford et al. 2016; Ronneberger et al. 2015, padded, on 256 x 256 images; Sandler et al.
# 2018; Kong et al. 2020, V1 on 32 frames; Liu et al. 2022.
_LAYERS = {
    "resnet50": """
        ic3ih224oc64oh112kh7sh2ph3nstem
        ic64ih56oc64oh56kh1nstage1_first
        ic64ih56oc64oh56kh3ph1nstage1_middle
        ic64ih56oc256oh56kh1nstage1_widen
        ic256ih56oc64oh56kh1nstage1_narrow
        ic256ih56oc128oh56kh1nstage2_enter
        ic128ih56oc128oh28kh3sh2ph1nstage2_down
        ic256ih56oc512oh28kh1sh2nstage2_skip
        ic128ih28oc512oh28kh1nstage2_widen
        ic512ih28oc128oh28kh1nstage2_narrow
        ic128ih28oc128oh28kh3ph1nstage2_middle
        ic512ih28oc256oh28kh1nstage3_enter
        ic256ih28oc256oh14kh3sh2ph1nstage3_down
        ic512ih28oc1024oh14kh1sh2nstage3_skip
        ic256ih14oc1024oh14kh1nstage3_widen
        ic1024ih14oc256oh14kh1nstage3_narrow
        ic256ih14oc256oh14kh3ph1nstage3_middle
        ic1024ih14oc512oh14kh1nstage4_enter
        ic512ih14oc512oh7kh3sh2ph1nstage4_down
        ic1024ih14oc2048oh7kh1sh2nstage4_skip
        ic512ih7oc2048oh7kh1nstage4_widen
        ic2048ih7oc512oh7kh1nstage4_narrow
        ic512ih7oc512oh7kh3ph1nstage4_middle""",
    "dcgan": """
        T ic100ih1oc1024oh4kh4nproject
        T ic1024ih4oc512oh8kh4sh2ph1nup8
        T ic512ih8oc256oh16kh4sh2ph1nup16
        T ic256ih16oc128oh32kh4sh2ph1nup32
        T ic128ih32oc3oh64kh4sh2ph1nimage""",
    "unet": """
        ic3ih256oc64oh256kh3ph1nenter
        ic64ih256oc64oh256kh3ph1nlevel1
        ic64ih128oc128oh128kh3ph1ndown2
        ic128ih64oc256oh64kh3ph1ndown3
        ic256ih32oc512oh32kh3ph1ndown4
        ic512ih16oc1024oh16kh3ph1nbottom
        T ic1024ih16oc512oh32kh2sh2nup4
        T ic512ih32oc256oh64kh2sh2nup3
        T ic256ih64oc128oh128kh2sh2nup2
        T ic128ih128oc64oh256kh2sh2nup1
        ic1024ih32oc512oh32kh3ph1njoin4
        ic256ih128oc128oh128kh3ph1njoin2
        ic64ih256oc2oh256kh1nclasses""",
    "mobilenet_v2": """
        ic3ih224oc32oh112kh3sh2ph1nstem
        g32ic32ih112oc32oh112kh3ph1ndepthwise112
        ic32ih112oc16oh112kh1nnarrow112
        ic16ih112oc96oh112kh1nwiden112
        g96ic96ih112oc96oh56kh3sh2ph1ndepthwise112_down
        ic96ih56oc24oh56kh1nnarrow56
        ic24ih56oc144oh56kh1nwiden56
        g144ic144ih56oc144oh56kh3ph1ndepthwise56
        g144ic144ih56oc144oh28kh3sh2ph1ndepthwise56_down
        ic144ih28oc32oh28kh1nnarrow28
        ic32ih28oc192oh28kh1nwiden28
        g192ic192ih28oc192oh28kh3ph1ndepthwise28
        g192ic192ih28oc192oh14kh3sh2ph1ndepthwise28_down
        ic384ih14oc64oh14kh1nnarrow14
        ic64ih14oc384oh14kh1nwiden14
        g384ic384ih14oc384oh14kh3ph1ndepthwise14
        g576ic576ih14oc576oh7kh3sh2ph1ndepthwise14_down
        ic960ih7oc160oh7kh1nnarrow7
        ic160ih7oc960oh7kh1nwiden7
        g960ic960ih7oc960oh7kh3ph1ndepthwise7
        ic320ih7oc1280oh7kh1nhead""",
    "hifigan": """
        ic80iw32oc512ow32kw7pw3nenter
        T ic512iw32oc256ow256kw16sw8pw4nup1
        T ic256iw256oc128ow2048kw16sw8pw4nup2
        T ic128iw2048oc64ow4096kw4sw2pw1nup3
        T ic64iw4096oc32ow8192kw4sw2pw1nup4
        ic256iw256oc256ow256kw11dw4pw25nresidual1_wide
        ic128iw2048oc128ow2048kw7dw2pw9nresidual2
        ic64iw4096oc64ow4096kw3pw1nresidual3
        ic32iw8192oc32ow8192kw11dw4pw25nresidual4_wide
        ic32iw8192oc1ow8192kw7pw3nwave""",
    "convnext_tiny": """
        ic3ih224oc96oh56kh4sh4nstem
        g96ic96ih56oc96oh56kh7ph3ndepthwise56
        ic96ih56oc384oh56kh1nwiden56
        ic384ih56oc96oh56kh1nnarrow56
        ic96ih56oc192oh28kh2sh2ndown28
        g192ic192ih28oc192oh28kh7ph3ndepthwise28
        ic192ih28oc768oh28kh1nwiden28
        ic768ih28oc192oh28kh1nnarrow28
        ic192ih28oc384oh14kh2sh2ndown14
        g384ic384ih14oc384oh14kh7ph3ndepthwise14
        ic384ih14oc1536oh14kh1nwiden14
        ic1536ih14oc384oh14kh1nnarrow14
        ic384ih14oc768oh7kh2sh2ndown7
        g768ic768ih7oc768oh7kh7ph3ndepthwise7
        ic768ih7oc3072oh7kh1nwiden7
        ic3072ih7oc768oh7kh1nnarrow7""",
}
NETWORKS = tuple(_LAYERS)
BATCH = 4  # where none is asked for


def layers(network: str) -> list[tuple[str, str, bool]]:
    """Name, problem string, and whether it is transposed, of every layer."""
    found = []
    for line in _LAYERS[network].split("\n"):
        if words := line.split():
            found.append((words[-1].partition("n")[2], words[-1], words[0] == "T"))
    return found
