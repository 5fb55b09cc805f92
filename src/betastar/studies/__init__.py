"""The paper's figures, the study of gap clipping, and studies as audits play them."""
